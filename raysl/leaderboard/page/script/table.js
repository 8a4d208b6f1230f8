// The table: sorted by a click on a heading, filtered by words, configuration and status.

const board = document.querySelector(".board");

function compared(one, other, down) {
  // Numbers as such, text as text, and what is empty last, whichever way.
  if (one === "" || other === "") return (one === "") - (other === "");
  const [x, y] = [Number(one), Number(other)];
  const order = isNaN(x) || isNaN(y) ? one.localeCompare(other, "en", { numeric: true }) : x - y;
  return down ? -order : order;
}

function sortRows() {
  const heads = [...board.tHead.rows[0].cells];
  if (!(state.sort < heads.length)) [state.sort, state.down] = [0, false];
  heads.forEach((head, place) => {
    const way = place !== state.sort ? "none" : state.down ? "descending" : "ascending";
    head.setAttribute("aria-sort", way);
  });
  const key = (line) => line.cells[state.sort].dataset.by ?? line.cells[state.sort].textContent;
  const lines = [...board.tBodies[0].rows].map((line) => [key(line), Number(line.dataset.row), line]);
  lines.sort((one, other) => compared(one[0], other[0], state.down) || one[1] - other[1]);
  board.tBodies[0].append(...lines.map(([, , line]) => line));
}

function filterRows() {
  const told = (name) => document.getElementById(name)?.value ?? "";
  const words = told("filter").toLowerCase().split(/\s+/).filter(Boolean);
  const [config, status] = [told("config"), told("status")];
  hidden.clear();
  for (const line of board.tBodies[0].rows) {
    const text = line.textContent.toLowerCase();
    const fits = words.every((word) => text.includes(word)) && (!config || line.dataset.config === config);
    line.hidden = !(fits && (!status || line.dataset.status.includes(status)));
    if (line.hidden) hidden.add(Number(line.dataset.row));
  }
  const all = board.tBodies[0].rows.length;
  document.getElementById("count").textContent = hidden.size ? `${all - hidden.size} of ${all} rows` : "";
}

function setUpTable() {
  if (!board) return;
  [...board.tHead.rows[0].cells].forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.id = "sort" + place;
    button.textContent = head.textContent;
    button.addEventListener("click", () => {
      // Numbers begin with the largest, but for ranks; a second click turns them round.
      const first = place > 0 && head.classList.contains("number");
      state.down = state.sort === place ? !state.down : first;
      state.sort = place;
      sortRows();
    });
    head.replaceChildren(button);
  });
  for (const name of ["filter", "config", "status"]) field(name, () => { filterRows(); redraw(); });
  for (const kind of ["pointerover", "focusin"])
    board.tBodies[0].addEventListener(kind, (event) => {
      const line = event.target.closest("tr");
      if (line) light(Number(line.dataset.row));
    });
  board.addEventListener("pointerleave", () => light(null));
  sortRows();
  filterRows();
}
