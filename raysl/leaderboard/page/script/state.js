// What a reader has set, kept over the reloads of a page whose sweep runs.

const DATA = JSON.parse(document.getElementById("data").textContent);
const KEY = "raysl leaderboard " + location.pathname;
const state = Object.assign({ sort: 0, down: false, fields: {}, open: [], top: 0, left: 0, box: 0 }, restored());
let lastTouch = 0;

function restored() {
  try {
    return JSON.parse(sessionStorage.getItem(KEY)) || {};
  } catch (error) {
    return {}; // a browser may refuse storage to files, or hold what another version wrote
  }
}

function keep() {
  const box = document.querySelector("#results .wide");
  state.top = window.scrollY;
  state.left = box ? box.scrollLeft : 0;
  state.box = box ? box.scrollTop : 0;
  state.open = [...document.querySelectorAll("details[open]")].map((fold) => fold.id);
  const active = document.activeElement;
  state.focus = active && active.id ? active.id : "";
  state.caret = active && active.type === "search" ? active.selectionStart : null;
  try {
    sessionStorage.setItem(KEY, JSON.stringify(state));
  } catch (error) {
    return; // the page works without, and forgets
  }
}

function field(name, changed) {
  // A select or an input by its id, set as it was; `changed` is called where the reader changes it.
  const input = document.getElementById(name);
  if (!input) return null;
  const known = input.tagName !== "SELECT" || [...input.options].some((option) => option.value === state.fields[name]);
  if (name in state.fields && known) input.value = state.fields[name];
  input.addEventListener(input.tagName === "SELECT" ? "change" : "input", () => {
    state.fields[name] = input.value;
    changed();
  });
  return input;
}

function comeBack() {
  // Folds, focus and places of scrolling, once everything is drawn.
  for (const name of state.open) {
    const fold = name && document.getElementById(name);
    if (fold) fold.open = true;
  }
  const focused = state.focus && document.getElementById(state.focus);
  if (focused) {
    focused.focus({ preventScroll: true });
    if (state.caret !== null && focused.type === "search") focused.setSelectionRange(state.caret, state.caret);
  }
  const box = document.querySelector("#results .wide");
  if (box) box.scrollTo(state.left, state.box);
  if (state.top) window.scrollTo(0, state.top);
}

const STALE_S = 600; // without anything written, where every few seconds something is

function reloadWhileItRuns() {
  if (DATA.state !== "running") return;
  if (Date.now() / 1000 - DATA.written > STALE_S)
    document.getElementById("live").textContent =
      "The sweep ran when this page was written, and has written nothing since: if it was cut off, what started it goes on with it.";
  const loaded = Date.now();
  for (const kind of ["pointermove", "pointerdown", "keydown", "wheel"])
    addEventListener(kind, () => (lastTouch = Date.now()), { passive: true });
  setInterval(() => {
    const isIdle = Date.now() - lastTouch > Math.min(3000, DATA.reload * 1000);
    if (Date.now() - loaded >= DATA.reload * 1000 && isIdle && !document.hidden) location.reload();
  }, 500);
}
