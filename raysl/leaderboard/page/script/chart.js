// What all drawings share: frames, colours, the row that is pointed at, and what is shown beside the pointer.

const LETTER = 6.6; // width of a letter at the axes, in pixels
const NEAR = 26; // pixels up to which a pointer is at something
const charts = [];
const tip = document.getElementById("tip");
const hidden = new Set(); // rows that the filter has taken out

function rankClass(row) {
  return row < DATA.best ? "best" + (row + 1) : "rest";
}

function valueOf(row, metric = DATA.objectives[0].metric) {
  const numbers = DATA.rows[row].numbers[metric];
  return numbers ? numbers[0] : null;
}

function shade(row) {
  // Colour of a row's number of the first objective, from what the worse tenth begins with to the best.
  const value = valueOf(row);
  const [bad, good] = shadeEnds();
  if (value === null) return "var(--grid)";
  const share = good === bad ? 1 : Math.min(1, Math.max(0, (value - bad) / (good - bad)));
  return `color-mix(in oklab, var(--high) ${Math.round(share * 100)}%, var(--low))`;
}

let ends = null;
function shadeEnds() {
  if (!ends) {
    const way = DATA.objectives[0].mode === "min" ? 1 : -1;
    const told = DATA.rows.map((_, row) => valueOf(row)).filter((value) => value !== null);
    told.sort((one, other) => way * (one - other)); // the best first
    ends = [told[Math.floor((told.length - 1) * 0.9)] ?? 0, told[0] ?? 0];
  }
  return ends;
}

function shadeLegend(svg, left, top, width) {
  const [bad, good] = shadeEnds();
  const isLow = DATA.objectives[0].mode === "min";
  const name = svg.closest(".chart").id + "-shades";
  const made = draw(draw(svg, "defs", {}), "linearGradient", { id: name });
  for (let turn = 0; turn <= 4; turn++)
    draw(made, "stop", { offset: turn / 4, style: `stop-color:color-mix(in oklab, var(--high) ${turn * 25}%, var(--low))` });
  draw(svg, "rect", { x: left, y: top, width, height: 8, rx: 2, fill: `url(#${name})` });
  draw(svg, "text", { x: left, y: top + 21, class: "tick" }, (isLow ? "≥ " : "≤ ") + spelled(bad));
  draw(svg, "text", { x: left + width, y: top + 21, class: "tick", "text-anchor": "end" }, spelled(good));
}

function chart(name, drawn) {
  // Registers a drawing: `drawn(box, svg, width)` fills it and returns points {row, x, y, lines} to be pointed at.
  const box = document.getElementById(name + "-chart");
  if (!box) return;
  const own = { box, drawn, points: [], svg: null };
  charts.push(own);
  box.addEventListener("pointermove", (event) => point(own, event));
  box.addEventListener("pointerdown", (event) => point(own, event));
  box.addEventListener("pointerleave", () => { light(null); tip.hidden = true; });
}

function redraw() {
  for (const own of charts) {
    const left = own.box.scrollLeft;
    own.box.replaceChildren();
    own.svg = draw(own.box, "svg", { role: "img" });
    own.points = own.drawn(own.box, own.svg, Math.max(280, own.box.clientWidth)) || [];
    own.over = draw(own.svg, "g", { class: "over" });
    own.box.scrollLeft = left;
  }
}

function sized(svg, width, height, label) {
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("aria-label", label);
  svg.style.width = width + "px";
  svg.style.height = height + "px";
}

function frame(svg, width, height, xs, ys, names, kinds = {}) {
  // Axes with numbers, names and a grid; xs and ys are the values that have to fit.
  const top = kinds.top ?? 26, bottom = height - 40;
  const y = scale(extremes(ys), bottom, top, 5);
  const left = 14 + LETTER * Math.max(...y.ticks.map((value) => spelled(value).length), 2);
  const right = width - 14;
  const x = scale(extremes(xs), left + 4, right, Math.max(3, Math.floor((right - left) / 90)), kinds.x, kinds.pad);
  for (const value of y.ticks) {
    draw(svg, "line", { x1: left, x2: right, y1: y.place(value), y2: y.place(value), class: "grid" });
    draw(svg, "text", { x: left - 6, y: y.place(value) + 4, class: "tick", "text-anchor": "end" }, spelled(value));
  }
  draw(svg, "line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" });
  for (const value of x.ticks) {
    const at = x.place(value), text = spelled(value);
    draw(svg, "line", { x1: at, x2: at, y1: bottom, y2: bottom + 4, class: "axis" });
    const anchor = at + (text.length * LETTER) / 2 > width ? "end" : "middle";
    draw(svg, "text", { x: anchor === "end" ? width - 2 : at, y: bottom + 17, class: "tick", "text-anchor": anchor }, text);
  }
  draw(svg, "text", { x: (left + right) / 2, y: height - 5, class: "title", "text-anchor": "middle" }, names.x);
  draw(svg, "text", { x: 0, y: 14, class: "title" }, names.y);
  return { x, y, left, right, top, bottom };
}

function referenceValues(metric) {
  return (DATA.references[metric] ?? []).map(([, value]) => value);
}

function references(svg, metric, { y, left, right }, side = "end") {
  // What raw pixels and untrained networks have: lines across, with their names at one side.
  for (const [name, value] of DATA.references[metric] ?? []) {
    const at = y.place(value);
    draw(svg, "line", { x1: left, x2: right, y1: at, y2: at, class: "reference " + name.split(" ").at(-1) });
    const words = { x: side === "end" ? right : left + 6, y: at - 4, class: "halo", "text-anchor": side };
    draw(svg, "text", words, `${name} ${spelled(value)}`);
  }
}

function point(own, event) {
  const place = own.svg.getBoundingClientRect();
  const [x, y] = [event.clientX - place.left, event.clientY - place.top];
  let nearest = null, least = NEAR * NEAR;
  for (const one of own.points) {
    const away = one.to ? toSegment(x, y, one, one.to) : (one.x - x) ** 2 + (one.y - y) ** 2;
    if (away < least) [nearest, least] = [one, away];
  }
  light(nearest ? nearest.row : null, nearest ? nearest.run : undefined);
  if (nearest) show(nearest.lines, event.clientX, event.clientY);
  else tip.hidden = true;
}

function toSegment(x, y, from, to) {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const share = Math.min(1, Math.max(0, ((x - from.x) * dx + (y - from.y) * dy) / (dx * dx + dy * dy || 1)));
  return (from.x + share * dx - x) ** 2 + (from.y + share * dy - y) ** 2;
}

function show(lines, x, y) {
  tip.replaceChildren(...lines.map((text, turn) => {
    const line = document.createElement(turn ? "div" : "b");
    line.textContent = text;
    return line;
  }));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(x + 14, document.documentElement.clientWidth - width - 4)) + "px";
  tip.style.top = (y - height - 12 > 4 ? y - height - 12 : y + 18) + "px";
}

let lit = null;
function light(row, run) {
  // Bring one row forward in all drawings and in the table; null: none.
  const name = row === null ? null : `${row}/${run}`;
  if (name === lit) return;
  lit = name;
  for (const own of charts) {
    own.svg.classList.toggle("dimmed", row !== null);
    const marks = row === null ? [] : own.svg.querySelectorAll(`[data-row="${row}"]`);
    own.over.replaceChildren(...[...marks].filter((mark) => !own.over.contains(mark)).map((mark) => mark.cloneNode(true)));
  }
  for (const line of document.querySelectorAll("tr.lit")) line.classList.remove("lit");
  if (row !== null) document.querySelector(`.board tr[data-row="${row}"]`)?.classList.add("lit");
}
