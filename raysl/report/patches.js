// Draws how similar all patches are to a chosen one, for each network.

const box = document.getElementById("similar"), sprite = document.getElementById("sprite");
const data = JSON.parse(document.getElementById("codes").textContent);
const num = Number(box.dataset.num), gap = 6, near = 8, small = 192, large = 448;
const networks = data.networks.map(decoded), [rows, columns] = networks[0].grid;
let chosen = { image: 0, row: rows >> 1, column: columns >> 1 };

function decoded(network) {
  // The codes of all patches, one after another, as numbers.
  const bytes = Uint8Array.from(atob(network.codes), (letter) => letter.charCodeAt(0));
  const levels = new Int8Array(bytes.buffer), width = network.scales.length;
  return { ...network, width, codes: Float32Array.from(levels, (level, at) => level * network.scales[at % width]) };
}

function element(kind, parent, text = "") {
  const made = document.createElement(kind);
  made.textContent = text;
  parent.append(made);
  return made;
}

function canvas(parent, side, image, title) {
  // A square picture of an image, whose patches can be clicked; `image` is a function, since it may change.
  const made = element("canvas", parent);
  made.width = made.height = side;
  made.setAttribute("role", "img");
  made.setAttribute("aria-label", title);
  made.addEventListener("click", (event) => {
    const row = Math.floor((event.offsetY / made.clientHeight) * rows);
    const column = Math.floor((event.offsetX / made.clientWidth) * columns);
    choose(image(), row, column);
  });
  return made;
}

function similarities(network) {
  const { codes, width } = network, first = place(chosen) * width, cosines = new Float32Array(codes.length / width);
  for (let patch = 0; patch < cosines.length; patch++) {
    let sum = 0;
    for (let at = 0; at < width; at++) sum += codes[first + at] * codes[patch * width + at];
    cosines[patch] = sum;
  }
  cosines[place(chosen)] = 1; // a code is rounded
  return cosines;
}

function place({ image, row, column }) { return (image * rows + row) * columns + column; }

function patchAt(index) {
  const inside = index % (rows * columns);
  return { image: Math.floor(index / (rows * columns)), row: Math.floor(inside / columns), column: inside % columns };
}

function color(share) {
  const at = Math.min(Math.max(share, 0), 1) * (data.heat.length - 1), low = Math.min(Math.floor(at), data.heat.length - 2);
  const mixed = data.heat[low].map((level, channel) => level + (data.heat[low + 1][channel] - level) * (at - low));
  return `rgb(${mixed.map(Math.round).join(",")})`;
}

function drawImage(made, image) {
  const pen = made.getContext("2d");
  pen.imageSmoothingEnabled = data.side > 96; // small images keep their pixels as squares
  pen.globalAlpha = 1;
  pen.drawImage(sprite, image * (data.side + gap), 0, data.side, data.side, 0, 0, made.width, made.height);
  return pen;
}

function drawMap(made, image, cosines, least) {
  const pen = drawImage(made, image), tall = made.height / rows, wide = made.width / columns;
  pen.globalAlpha = 0.75;
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++) {
      const cosine = cosines[place({ image, row, column })];
      pen.fillStyle = color((cosine - least) / Math.max(1 - least, 1e-6));
      // whole pixels, so that no seams show between patches
      const [x, y] = [Math.round(column * wide), Math.round(row * tall)];
      pen.fillRect(x, y, Math.round((column + 1) * wide) - x, Math.round((row + 1) * tall) - y);
    }
  pen.globalAlpha = 1;
}

function frame(made, patch, ink, thick) {
  const pen = made.getContext("2d"), tall = made.height / rows, wide = made.width / columns;
  const [x, y] = [patch.column * wide, patch.row * tall];
  for (const [style, extra] of [["#000", 2], [ink, 0]]) {
    pen.strokeStyle = style;
    pen.lineWidth = thick + extra;
    pen.strokeRect(x, y, wide, tall);
  }
}

function drawNear(list, cosines, order) {
  // Each near patch with a border of its surroundings.
  list.replaceChildren();
  for (const index of order) {
    const patch = patchAt(index), item = element("li", list), made = element("canvas", item), side = 96, pen = made.getContext("2d");
    made.width = made.height = side;
    const wide = data.side / columns, tall = data.side / rows;
    const part = Math.min(Math.max(3 * Math.max(wide, tall), data.side / 4), data.side);
    const left = Math.min(Math.max((patch.column + 0.5) * wide - part / 2, 0), data.side - part);
    const top = Math.min(Math.max((patch.row + 0.5) * tall - part / 2, 0), data.side - part);
    pen.imageSmoothingEnabled = data.side > 96;
    pen.drawImage(sprite, patch.image * (data.side + gap) + left, top, part, part, 0, 0, side, side);
    for (const [style, width] of [["#000", 4], ["#fff", 2]]) {
      pen.strokeStyle = style;
      pen.lineWidth = width;
      const zoom = side / part;
      pen.strokeRect((patch.column * wide - left) * zoom, (patch.row * tall - top) * zoom, wide * zoom, tall * zoom);
    }
    made.setAttribute("role", "img");
    made.setAttribute("aria-label", `image ${patch.image + 1}, row ${patch.row + 1}, column ${patch.column + 1}`);
    made.addEventListener("click", () => choose(patch.image, patch.row, patch.column));
    element("span", item, cosines[index].toFixed(2));
  }
}

function choose(image, row, column) {
  const inside = (at, count) => Math.min(Math.max(at, 0), count - 1);
  chosen = { image: inside(image, num), row: inside(row, rows), column: inside(column, columns) };
  drawImage(picked, chosen.image);
  frame(picked, chosen, "#fff", 3);
  picked.setAttribute("aria-label", `image ${chosen.image + 1}, patch at row ${chosen.row + 1}, column ${chosen.column + 1}`);
  for (const network of networks) {
    const cosines = similarities(network), least = cosines.reduce((one, other) => Math.min(one, other), 1);
    const order = [...cosines.keys()].filter((index) => index !== place(chosen));
    order.sort((one, other) => cosines[other] - cosines[one] || one - other);
    order.length = Math.min(near, order.length);
    drawMap(network.map, chosen.image, cosines, least);
    network.strip.forEach((made, image) => drawMap(made, image, cosines, least));
    for (const patch of order.map(patchAt)) {
      frame(network.strip[patch.image], patch, "#fff", 2);
      if (patch.image === chosen.image) frame(network.map, patch, "#fff", 2);
    }
    frame(network.map, chosen, "#3df", 4);
    frame(network.strip[chosen.image], chosen, "#3df", 3);
    network.range.textContent = `cosine from ${least.toFixed(2)} (dark) to 1 (bright)`;
    drawNear(network.list, cosines, order);
  }
}

function move(event) {
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (!steps) return;
  event.preventDefault();
  choose(chosen.image, chosen.row + steps[0], chosen.column + steps[1]);
}

function figureOf(parent, title, image, side) {
  const made = element("figure", parent), drawing = canvas(made, side, image, title);
  element("figcaption", made, title);
  return drawing;
}

const largest = element("div", box);
largest.className = "chosen";
const picked = figureOf(largest, "chosen patch", () => chosen.image, large);
picked.tabIndex = 0;
picked.addEventListener("keydown", move);
for (const network of networks) network.map = figureOf(largest, network.title, () => chosen.image, large);
for (const network of networks) {
  element("h4", box, network.title[0].toUpperCase() + network.title.slice(1));
  const maps = element("div", box);
  maps.className = "maps";
  network.strip = Array.from({ length: num }, (_, image) => canvas(maps, small, () => image, `${network.title}, image ${image + 1}`));
  network.range = element("p", box);
  network.range.className = "quiet";
  network.list = element("ol", box);
  network.list.className = "near";
}
sprite.decode().then(() => choose(chosen.image, chosen.row, chosen.column));
