// Parallel coordinates: an axis a setting, and the number at the end.

const MAX_NAME = 15;

function drawParallel(box, svg, width) {
  const objective = DATA.objectives[0];
  const rows = DATA.rows.map((row, place) => ({ row, place })).filter(({ place }) => valueOf(place) !== null && !hidden.has(place));
  const names = Math.max(0, ...DATA.axes.map((axis) => axis.names.length));
  const wide = Math.max(width, 110 * DATA.axes.length + 150);
  const top = 46, bottom = Math.max(300, Math.min(720, top + 17 * names)), height = bottom + 54;
  sized(svg, wide, height, `Settings of each row and its ${objective.metric}`);
  const left = 16 + LETTER * firstWidth(), gap = (wide - left - 60) / DATA.axes.length;
  const axes = DATA.axes.map((axis, turn) => settingAxis(axis, turn, rows, top, bottom));
  const last = scale(extremes(rows.map(({ place }) => valueOf(place))), objective.mode === "min" ? top : bottom, objective.mode === "min" ? bottom : top, 6);
  axes.push({ title: objective.metric, ticks: last.ticks.map((value) => [spelled(value), last.place(value)]), place: (one) => last.place(valueOf(one.place)) });
  const points = [];
  for (const one of [...rows].reverse()) {
    const path = axes.map((axis, turn) => ({ x: left + turn * gap, y: axis.place(one) }));
    const d = path.map(({ x, y }, turn) => `${turn ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
    draw(svg, "path", { d, class: "thread", style: `stroke:${shade(one.place)}`, "data-row": one.place });
    const lines = [one.row.name, `${objective.metric} ${spelled(valueOf(one.place))}, rank ${one.place + 1}`, ...one.row.told];
    path.slice(1).forEach((to, turn) => points.push({ row: one.place, ...path[turn], to, lines }));
  }
  axes.forEach((axis, turn) => {
    const x = left + turn * gap;
    draw(svg, "line", { x1: x, x2: x, y1: top, y2: bottom, class: "pole" });
    const anchor = turn === axes.length - 1 ? "end" : turn ? "middle" : "start";
    const at = turn === axes.length - 1 ? wide - 2 : turn ? x : 0;
    const title = draw(svg, "text", { x: at, y: turn % 2 ? 30 : 14, class: "title", "text-anchor": anchor }, cut(axis.title, Math.floor((1.7 * gap) / LETTER)));
    draw(title, "title", {}, axis.title);
    for (const [text, y] of axis.ticks) {
      const isLast = turn === axes.length - 1;
      draw(svg, "line", { x1: x - 3, x2: x + 3, y1: y, y2: y, class: "pole" });
      const mark = draw(svg, "text", { x: isLast ? x + 7 : x - 7, y: y + 4, class: "tick halo", "text-anchor": isLast ? "start" : "end" }, cut(text, MAX_NAME));
      draw(mark, "title", {}, text);
    }
  });
  shadeLegend(svg, Math.max(left, wide - 220), height - 26, 200);
  draw(svg, "text", { x: Math.max(left, wide - 220) - 8, y: height - 18, class: "tick", "text-anchor": "end" }, wide > 420 ? objective.metric : "");
  return points;
}

function firstWidth() {
  // Letters of the longest number at the first axis, which has nothing to its left.
  const axis = DATA.axes[0];
  if (axis.kind === "category") return Math.min(MAX_NAME, Math.max(...axis.names.map((name) => name.length)));
  return 7;
}

function settingAxis(axis, turn, rows, top, bottom) {
  const told = rows.map(({ row }) => row.at[turn]);
  const some = told.some((value) => value === null);
  const end = some ? bottom - 24 : bottom; // what has not the setting lies beneath
  let ticks, place;
  if (axis.kind === "category") {
    place = (value) => top + ((end - top) * (value + 0.5)) / axis.names.length;
    ticks = axis.names.map((name, at) => [name, place(at)]);
  } else {
    const own = scale(extremes(told.filter((value) => value !== null)), end, top, 6, axis.kind, 0.02);
    place = own.place;
    ticks = own.ticks.map((value) => [spelled(value), place(value)]);
  }
  if (some) ticks.push(["unset", bottom]);
  return { title: axis.key, ticks, place: ({ row }) => (row.at[turn] === null ? bottom : place(row.at[turn])) };
}
