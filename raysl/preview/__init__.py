"""The page of `raysl report views`: what a method sees of some images."""
