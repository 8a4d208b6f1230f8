// Sorts and filters the table and the drawings, and shows what the pointer is on.

const KEY = "raysl leaderboard " + location.pathname;
const state = Object.assign({ sort: 0, down: false, fields: {}, open: [], top: 0, left: 0, box: 0 }, restored());
const board = document.querySelector(".board"), tip = document.getElementById("tip");
const marks = new Map(); // row -> its elements in all drawings
for (const mark of document.querySelectorAll("svg [data-row]")) {
  marks.set(mark.dataset.row, [...(marks.get(mark.dataset.row) ?? []), mark]);
  const title = mark.querySelector("title");
  if (title) { mark.dataset.title = title.textContent; title.remove(); } // the browser would show it a second time
}

function restored() {
  // What the reader had set before a page whose sweep runs was loaded again.
  try { return JSON.parse(sessionStorage.getItem(KEY)) || {}; } catch (error) { return {}; }
}

function keep() {
  const box = document.querySelector("#results .wide"), active = document.activeElement;
  Object.assign(state, { top: scrollY, left: box?.scrollLeft ?? 0, box: box?.scrollTop ?? 0, focus: active?.id ?? "" });
  state.caret = active?.type === "search" ? active.selectionStart : null;
  state.open = [...document.querySelectorAll("details[open]")].map((fold) => fold.id);
  try { sessionStorage.setItem(KEY, JSON.stringify(state)); } catch (error) { return; } // it works without, and forgets
}

function comeBack() {
  for (const name of state.open) if (name && document.getElementById(name)) document.getElementById(name).open = true;
  const active = state.focus && document.getElementById(state.focus);
  if (active) active.focus({ preventScroll: true });
  if (active && state.caret !== null && active.type === "search") active.setSelectionRange(state.caret, state.caret);
  document.querySelector("#results .wide")?.scrollTo(state.left, state.box);
  if (state.top) scrollTo(0, state.top);
}

function field(input, changed) {
  // An input, set as it was; `changed` is called now and where the reader changes it.
  const isKnown = input.tagName !== "SELECT" || [...input.options].some((one) => one.value === state.fields[input.id]);
  if (input.id in state.fields && isKnown) input.value = state.fields[input.id];
  for (const kind of ["input", "change"])
    input.addEventListener(kind, () => { state.fields[input.id] = input.value; changed(); });
  changed();
}

function chooseDrawing(section) {
  const choice = [...section.querySelectorAll("select")].map((one) => one.value).join(" · ");
  for (const drawing of section.querySelectorAll("[data-choice]")) drawing.hidden = drawing.dataset.choice !== choice;
}

function compared(one, other, down) {
  // Numbers as such, text as text, and what is empty last, whichever way.
  if (one === "" || other === "") return (one === "") - (other === "");
  const [x, y] = [Number(one), Number(other)];
  const order = isNaN(x) || isNaN(y) ? one.localeCompare(other, "en", { numeric: true }) : x - y;
  return down ? -order : order;
}

function rowsOf(part) { return [...part.querySelectorAll("tr[data-row]")]; }

function sortRows() {
  const heads = [...board.tHead.rows[0].cells];
  if (!(state.sort < heads.length)) [state.sort, state.down] = [0, false];
  const way = state.down ? "descending" : "ascending";
  heads.forEach((head, turn) => head.setAttribute("aria-sort", turn === state.sort ? way : "none"));
  const key = (line) => line.cells[state.sort].dataset.by ?? line.cells[state.sort].textContent;
  for (const body of board.tBodies) { // each section by itself
    const lines = rowsOf(body).map((line) => [key(line), Number(line.dataset.row), line]);
    lines.sort((one, other) => compared(one[0], other[0], state.down) || one[1] - other[1]);
    body.append(...lines.map(([, , line]) => line));
  }
}

function filterRows() {
  const value = (name) => document.getElementById(name)?.value ?? "";
  const words = value("filter").toLowerCase().split(/\s+/).filter(Boolean);
  const [config, status, lines] = [value("config"), value("status"), rowsOf(board)];
  for (const line of lines) {
    const text = line.textContent.toLowerCase();
    const fits = words.every((word) => text.includes(word)) && (!config || line.dataset.config === config);
    line.hidden = !(fits && (!status || line.dataset.status.includes(status)));
    for (const mark of marks.get(line.dataset.row) ?? []) mark.classList.toggle("hidden", line.hidden);
  }
  const shown = lines.filter((line) => !line.hidden).length;
  document.getElementById("count").textContent = shown < lines.length ? `${shown} of ${lines.length} rows` : "";
}

function setUpTable() {
  [...board.tHead.rows[0].cells].forEach((head, turn) => {
    const button = Object.assign(document.createElement("button"), { type: "button", id: "sort" + turn });
    button.append(...head.childNodes);
    button.addEventListener("click", () => {
      // Numbers begin with the largest, but for ranks; a second click turns them round.
      state.down = state.sort === turn ? !state.down : turn > 0 && head.classList.contains("number");
      state.sort = turn;
      sortRows();
    });
    head.replaceChildren(button);
  });
  for (const kind of ["pointerover", "focusin"])
    board.addEventListener(kind, (event) => light(event.target.closest("tr")?.dataset.row ?? null));
  board.addEventListener("pointerleave", () => light(null));
  sortRows();
}

function showMore(box) {
  // Costs and further numbers make the table wider than most screens.
  box.checked = state.fields.more === true;
  const changed = () => { state.fields.more = box.checked; board.classList.toggle("brief", !box.checked); };
  box.addEventListener("change", changed);
  changed();
}

function fit() {
  // Measurements for which the table has no room are among those that the box shows.
  const wide = board.closest(".wide"), heads = [...board.tHead.rows[0].cells];
  const lines = [...board.rows].filter((line) => line.cells.length === heads.length);
  const others = heads.map((head, turn) => turn).filter((turn) => heads[turn].classList.contains("other")).reverse();
  for (const line of lines) for (const turn of others) line.cells[turn].classList.remove("more");
  for (const turn of others) {
    if (wide.scrollWidth <= wide.clientWidth) break;
    for (const line of lines) line.cells[turn].classList.add("more");
  }
}

function sayWhatScrolls() {
  for (const part of document.querySelectorAll(".wide, .drawing")) {
    const hint = Object.assign(document.createElement("p"), { className: "quiet sideways", hidden: true });
    hint.textContent = "Scroll sideways for the rest. \u2192";
    part.before(hint);
    const look = () => { hint.hidden = part.scrollWidth <= part.clientWidth + 1; };
    new ResizeObserver(look).observe(part);
    for (const child of part.children) new ResizeObserver(look).observe(child);
  }
}

let lit = null;
function light(row) {
  // Bring one row forward in all drawings and in the table; null: none.
  if (row === lit) return;
  lit = row;
  document.querySelectorAll("svg .over").forEach((copy) => copy.remove());
  for (const svg of document.querySelectorAll(".drawing > svg")) svg.classList.toggle("dimmed", row !== null);
  for (const mark of marks.get(row) ?? []) {
    mark.parentNode.append(mark.cloneNode(true));
    mark.parentNode.lastChild.classList.add("over");
  }
  for (const line of board ? rowsOf(board) : []) line.classList.toggle("lit", line.dataset.row === row);
}

function point(event) {
  // The mark at the pointer, or the first that a ring around it meets: lines are thin.
  for (const [radius, turns] of [[0, 1], [4, 8], [9, 12]])
    for (let turn = 0; turn < turns; turn++) {
      const angle = (2 * Math.PI * turn) / turns;
      const spot = [event.clientX + radius * Math.cos(angle), event.clientY + radius * Math.sin(angle)];
      const mark = document.elementFromPoint(...spot)?.closest("svg [data-row]");
      if (mark) return show(mark, event);
    }
  leave();
}

function leave() { light(null); tip.hidden = true; }

function show(mark, { clientX, clientY }) {
  light(mark.dataset.row);
  const settings = board.querySelector(`tr[data-row="${mark.dataset.row}"]`)?.dataset.settings ?? "";
  tip.textContent = [mark.dataset.title, settings].filter(Boolean).join("\n");
  tip.hidden = !mark.dataset.title;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(clientX + 14, document.documentElement.clientWidth - width - 4)) + "px";
  tip.style.top = (clientY - height - 12 > 4 ? clientY - height - 12 : clientY + 18) + "px";
}

async function copy(button) {
  const text = button.parentElement.querySelector("pre");
  try { await navigator.clipboard.writeText(text.textContent); button.textContent = "Copied"; }
  catch (error) { getSelection().selectAllChildren(text); button.textContent = "Selected"; } // a file may not write the clipboard
}

function reloadWhileItRuns(live) {
  const STALE_S = 600, loaded = Date.now(), every = Number(live.dataset.reload) * 1000;
  let touched = 0;
  if (loaded / 1000 - Number(live.dataset.written) > STALE_S) live.textContent = live.dataset.stale;
  for (const kind of ["pointermove", "pointerdown", "keydown", "wheel"])
    addEventListener(kind, () => (touched = Date.now()), { passive: true });
  setInterval(() => {
    const isIdle = Date.now() - touched > Math.min(3000, every);
    if (Date.now() - loaded >= every && isIdle && !document.hidden) location.reload();
  }, 500);
}

for (const hidden of document.querySelectorAll(".tools, .copy")) hidden.hidden = false;
for (const section of document.querySelectorAll("section:has([data-choice])")) {
  for (const select of section.querySelectorAll("select")) field(select, () => chooseDrawing(section));
  for (const kind of ["pointermove", "pointerdown"]) section.addEventListener(kind, point);
  section.addEventListener("pointerleave", leave);
}
if (board) setUpTable();
for (const input of document.querySelectorAll("#results .tools :is(#filter, select)")) field(input, filterRows);
for (const box of document.querySelectorAll("#more")) showMore(box);
if (document.getElementById("more")) { fit(); addEventListener("resize", fit); }
sayWhatScrolls();
for (const button of document.querySelectorAll(".copy")) button.addEventListener("click", () => copy(button));
history.scrollRestoration = "manual";
comeBack();
addEventListener("pagehide", keep);
for (const live of document.querySelectorAll("#live[data-reload]")) reloadWhileItRuns(live);
document.documentElement.dataset.ready = "yes";
