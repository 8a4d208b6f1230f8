from raysl.storage.cache import RecentlyUsed


def test_what_was_not_used_for_longest_goes_first() -> None:
    made: list[str] = []

    def use(key: str, size: int = 4) -> None:
        def make() -> tuple[str, int]:
            made.append(key)
            return key.upper(), size

        assert cache.get(key, make) == key.upper()

    cache: RecentlyUsed[str] = RecentlyUsed(10)
    for key in ("a", "b", "a", "c", "a", "b"):
        use(key)
    assert made == ["a", "b", "c", "b"]
    assert cache.num_bytes == 8
    use("large", 99)
    use("large", 99)
    assert made[4:] == ["large"], "what is larger than the cache is kept as long as it is the newest"
    use("a")
    assert cache.num_bytes == 4
