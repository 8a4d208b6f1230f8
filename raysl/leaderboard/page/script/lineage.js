// A population: a line a member, a stretch a run, arrows where weights were copied.

function drawLineage(box, svg, width) {
  const owner = rowOfRun(), stretches = DATA.lineage.filter(([run]) => !hidden.has(owner[run]));
  const all = DATA.lineage, lanes = Math.max(...all.map(([, lane]) => lane)) + 1;
  const gap = Math.max(16, Math.min(44, 520 / lanes));
  const left = 84, right = width - 16, top = 24, bottom = top + gap * lanes, height = bottom + 68;
  sized(svg, width, height, "Which run took weights from which");
  const x = scale([0, ...all.map(([, , , end]) => end)].reduce((two, value) => [Math.min(two[0], value), Math.max(two[1], value)], [0, 0]), left, right, Math.max(3, Math.floor((right - left) / 90)), "linear", 0.01);
  const y = (lane) => top + gap * (lane + 0.5);
  for (let lane = 0; lane < lanes; lane++) {
    draw(svg, "line", { x1: left, x2: right, y1: y(lane), y2: y(lane), class: "grid" });
    draw(svg, "text", { x: left - 8, y: y(lane) + 4, class: "tick", "text-anchor": "end" }, `member ${lane + 1}`);
  }
  for (const value of x.ticks) {
    draw(svg, "line", { x1: x.place(value), x2: x.place(value), y1: top, y2: bottom, class: "grid" });
    draw(svg, "text", { x: x.place(value), y: bottom + 17, class: "tick", "text-anchor": "middle" }, spelled(value));
  }
  draw(svg, "text", { x: (left + right) / 2, y: bottom + 33, class: "title", "text-anchor": "middle" }, "epochs");
  const points = [], known = new Map(all.map((one) => [one[0], one]));
  const thick = Math.max(5, gap * 0.3);
  for (const [run, lane, start, end] of stretches) {
    const row = owner[run], [from, to] = [x.place(start) + 2.5, Math.max(x.place(end) - 2.5, x.place(start) + 4)];
    draw(svg, "rect", { x: from, y: y(lane) - thick / 2, width: to - from, height: thick, rx: 2, style: `fill:${shade(row)}`, class: "stretch", "data-row": row });
  }
  for (const [run, lane, start, , parent] of stretches) {
    const above = parent === null ? null : known.get(parent);
    if (!above || above[1] === lane) continue;
    const at = x.place(start), way = y(lane) > y(above[1]) ? 1 : -1, tail = y(above[1]) + (way * thick) / 2, end = y(lane) - way * (thick / 2 + 5);
    const bend = 7 + 2.5 * Math.abs(lane - above[1]);
    draw(svg, "path", { d: `M${at - 4} ${tail}C${at - 4 - bend} ${tail + way * gap * 0.5} ${at + 5 - bend / 2} ${end - way * gap * 0.5} ${at + 5} ${end}`, class: "copied", "data-row": owner[run] });
    draw(svg, "path", { d: `M${at + 5} ${end + way * 5}l-4 ${-way * 7}l8 0Z`, class: "arrow", "data-row": owner[run] });
  }
  for (const [run, lane, start, end, parent] of stretches) {
    const row = owner[run], own = DATA.rows[row];
    const from = parent === null ? "began anew" : `weights of ${DATA.runs[parent].name} at epoch ${spelled(start)}`;
    const lines = [own.name, `${DATA.objectives[0].metric} ${spelled(valueOf(row))}, rank ${row + 1}`, from, ...own.told];
    points.push({ row, x: x.place(start), y: y(lane), to: { x: x.place(end), y: y(lane) }, lines });
  }
  shadeLegend(svg, Math.max(left, width - 220), bottom + 40, 200);
  draw(svg, "text", { x: Math.max(left, width - 220) - 8, y: bottom + 48, class: "tick", "text-anchor": "end" }, DATA.objectives[0].metric);
  return points;
}
