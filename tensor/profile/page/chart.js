// The picture of one recording: a canvas with the stack, and one above it with the cursor and the chosen tensor.

const MARGIN = {left: 62, right: 12, top: 22, bottom: 46};
const STRIP = 10;

function formatMebibytes(bytes) {
  const mebibytes = bytes / 1048576;
  return mebibytes.toFixed(mebibytes >= 100 ? 1 : 2);
}

// 1, 2 or 5 times a power of ten: about n of them make the whole.
function getStep(whole, n) {
  const power = 10 ** Math.floor(Math.log10(whole / n)), times = whole / n / power;
  return power * (times <= 1 ? 1 : times <= 2 ? 2 : times <= 5 ? 5 : 10);
}

class Chart {
  // shared: layers, axis, view (from, to), top and budget, the same for all charts.
  constructor(recording, element, shared) {
    Object.assign(this, {recording, element, shared, chosen: null, cursor: null});
    this.canvas = element.appendChild(document.createElement('canvas'));
    this.overlay = element.appendChild(document.createElement('canvas'));
  }

  get plot() {
    return {x: MARGIN.left, y: MARGIN.top, width: Math.max(this.width - MARGIN.left - MARGIN.right, 10),
            height: Math.max(this.height - MARGIN.top - MARGIN.bottom, 10)};
  }

  xOf(position) {
    const {from, to} = this.shared.view;
    return this.plot.x + (position - from) / (to - from) * this.plot.width;
  }

  yOf(bytes) {
    return this.plot.y + this.plot.height * (1 - bytes / this.shared.top);
  }

  begin(canvas) {
    const scale = devicePixelRatio || 1, context = canvas.getContext('2d');
    canvas.width = Math.round(this.width * scale);
    canvas.height = Math.round(this.height * scale);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.font = '12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';
    return context;
  }

  // For each column of device pixels the moment in it with the most bytes; -1: the recording has ended.
  findColumns() {
    const {recording, shared} = this, at = recording.at[shared.axis], scale = devicePixelRatio || 1;
    const n = Math.max(Math.round(this.plot.width * scale), 1), {from, to} = shared.view;
    this.columns = new Int32Array(n).fill(-1);
    for (let column = 0, moment = 0; column < n; column++) {
      const begin = from + (to - from) * column / n, end = from + (to - from) * (column + 1) / n;
      while (moment < recording.nChanges && at[moment + 1] <= begin)
        moment++;
      if (begin >= recording.ends[shared.axis])
        break;
      let best = moment;
      while (moment < recording.nChanges && at[moment + 1] < end)
        if (recording.totals[++moment] > recording.totals[best])
          best = moment;
      this.columns[column] = best;
    }
  }

  draw() {
    this.width = this.element.clientWidth;
    this.height = this.element.clientHeight;
    const context = this.begin(this.canvas);
    this.findColumns();
    this.drawGrid(context);
    this.drawStack(context);
    this.drawPhases(context);
    this.drawLines(context);
    this.drawOverlay();
  }

  drawGrid(context) {
    const {plot, shared} = this, step = getStep(shared.top / 1048576, 5), {from, to} = shared.view;
    context.strokeStyle = getColour('rule');
    context.fillStyle = getColour('faint');
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    for (let mebibytes = 0; mebibytes * 1048576 <= shared.top; mebibytes += step) {
      const y = Math.round(this.yOf(mebibytes * 1048576)) + 0.5;
      context.beginPath();
      context.moveTo(plot.x, y);
      context.lineTo(plot.x + plot.width, y);
      context.stroke();
      context.fillText(String(Number(mebibytes.toPrecision(6))), plot.x - 6, y);
    }
    context.textBaseline = 'alphabetic';
    context.textAlign = 'left';
    context.fillText('MiB', 4, plot.y - 8);
    const seconds = shared.axis === 'seconds', along = getStep(to - from, Math.max(plot.width / 90, 2));
    const bottom = plot.y + plot.height + STRIP + 4, unit = seconds ? 'seconds' : 'kernels launched';
    const unitLeft = plot.x + plot.width - context.measureText(unit).width;
    for (let i = Math.ceil(from / along); i * along <= to; i++) {
      const x = this.xOf(i * along), text = String(Number((i * along).toPrecision(6)));
      const half = context.measureText(text).width / 2;
      context.beginPath();
      context.moveTo(x, bottom - 3);
      context.lineTo(x, bottom + 1);
      context.stroke();
      if (x + half < plot.x + plot.width + MARGIN.right)
        context.fillText(text, x - half, bottom + 14);
    }
    context.fillText(unit, unitLeft, bottom + 28);
  }

  drawStack(context) {
    const {plot, shared} = this, scale = devicePixelRatio || 1, walk = new Walk(this.recording, shared.layers);
    const colours = shared.layers.layers.map(layer => layer.colour()), seam = getColour('seam');
    const bottom = Math.round((plot.y + plot.height) * scale), left = Math.round(plot.x * scale);
    const perByte = plot.height * scale / shared.top, thick = 4 * scale / perByte;
    context.save();
    context.setTransform(1, 0, 0, 1, 0, 0);
    for (let column = 0; column < this.columns.length && this.columns[column] >= 0; column++) {
      let below = 0;
      walk.goTo(this.columns[column]);
      walk.bytes.forEach((bytes, layer) => {
        if (bytes <= 0)
          return;
        const y = Math.round(below * perByte);
        below += bytes;
        const height = Math.round(below * perByte) - y;
        context.fillStyle = colours[layer];
        context.fillRect(left + column, bottom - y - height, 1, height);
      });
      context.fillStyle = seam;
      walk.each((block, layer, offset, bytes) => {
        if (bytes >= thick)
          context.fillRect(left + column, bottom - Math.round((offset + bytes) * perByte), 1, 1);
      });
    }
    context.restore();
  }

  drawPhases(context) {
    const {plot, recording, shared} = this, y = plot.y + plot.height + 2, right = plot.x + plot.width;
    const end = recording.ends[shared.axis];
    recording.spans.forEach((span, i) => {
      const next = recording.spans[i + 1], to = Math.min(next ? next[shared.axis] : end, end);
      const x1 = Math.max(this.xOf(span[shared.axis]), plot.x), x2 = Math.min(this.xOf(to), right);
      if (span.phase === 4 || x2 <= x1)
        return;
      context.fillStyle = getColour(['forward', 'recompute', 'backward', 'step'][span.phase]);
      context.fillRect(x1, y, Math.max(x2 - x1, 0.5), STRIP);
    });
  }

  drawLine(context, bytes, colour, text, dash, side) {
    const {plot} = this, y = this.yOf(bytes);
    context.save();
    context.strokeStyle = context.fillStyle = colour;
    context.setLineDash(dash);
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(plot.x, y);
    context.lineTo(plot.x + plot.width, y);
    context.stroke();
    context.textAlign = side;
    context.lineWidth = 4;
    context.setLineDash([]);
    context.lineJoin = 'round';
    context.strokeStyle = getColour('page');
    const x = side === 'right' ? plot.x + plot.width - 4 : plot.x + 6;
    context.strokeText(text, x, y - 5);
    context.fillText(text, x, y - 5);
    context.restore();
  }

  drawLines(context) {
    const {recording, shared} = this, peak = recording.peaks[FREE];
    this.drawLine(context, peak, getColour('ink'), `peak ${formatMebibytes(peak)} MiB`, [4, 3], 'left');
    if (shared.budget === 0)
      return;
    const text = `budget ${formatMebibytes(shared.budget)} MiB`, beyond = shared.budget > shared.top;
    this.drawLine(context, Math.min(shared.budget, shared.top), getColour('budget'), beyond ? `${text}, above` : text,
                  beyond ? [1, 5] : [], 'right');
  }

  drawOverlay() {
    const context = this.begin(this.overlay), {plot} = this;
    if (this.chosen !== null && this.chosen >= 0)
      this.outline(context, this.marked ?? [this.chosen]);
    if (this.cursor === null)
      return;
    const x = Math.round(this.xOf(this.recording.at[this.shared.axis][this.cursor])) + 0.5;
    context.strokeStyle = getColour('outline');
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x, plot.y);
    context.lineTo(x, plot.y + plot.height);
    if (x >= plot.x && x <= plot.x + plot.width)
      context.stroke();
  }

  // The regions of blocks, which move as others below them come and go; of so many that the page stays quick.
  outline(context, blocks) {
    const {plot, recording, shared} = this, scale = devicePixelRatio || 1, walk = new Walk(recording, shared.layers);
    const edges = blocks.slice(0, 100).map(block =>
      ({block, bytes: recording.blocks.bytes[block], top: [], bottom: []}));
    for (let column = 0; column < this.columns.length && this.columns[column] >= 0; column++) {
      const x = plot.x + column / scale;
      walk.goTo(this.columns[column]);
      for (const {block, bytes, top, bottom} of edges) {
        const below = walk.below(block);
        if (below < 0)
          continue;
        top.push([x, this.yOf(below + bytes)], [x + 1 / scale, this.yOf(below + bytes)]);
        bottom.push([x, this.yOf(below)], [x + 1 / scale, this.yOf(below)]);
      }
    }
    context.beginPath();
    for (const {top, bottom} of edges) {
      [...top, ...bottom.reverse()].forEach(([x, y], i) => i === 0 ? context.moveTo(x, y) : context.lineTo(x, y));
      context.closePath();
    }
    context.fillStyle = getColour('seam');
    context.fill();
    context.strokeStyle = getColour('outline');
    context.lineWidth = edges.length > 12 ? 0.75 : 1.5;
    context.stroke();
  }

  momentAt(x) {
    const column = Math.floor((x - this.plot.x) / this.plot.width * this.columns.length);
    return this.columns[Math.min(Math.max(column, 0), this.columns.length - 1)];
  }

  positionAt(x) {
    const {from, to} = this.shared.view;
    return Math.min(Math.max(from + (x - this.plot.x) / this.plot.width * (to - from), from), to);
  }

  // The block at a moment under a number of bytes: its index, -1 - purpose for what was there before; null: none.
  blockAt(moment, bytes) {
    const walk = new Walk(this.recording, this.shared.layers).goTo(moment);
    let found = null;
    walk.each((block, layer, offset, size) => {
      if (bytes >= offset && bytes < offset + size)
        found = block >= 0 ? block : -1 - layer;
    });
    return found;
  }

  bytesAt(y) {
    return (this.plot.y + this.plot.height - y) / this.plot.height * this.shared.top;
  }

  // From the bottom to the top.
  blocksAt(moment) {
    const blocks = [];
    new Walk(this.recording, this.shared.layers).goTo(moment).each(block => {
      if (block >= 0)
        blocks.push(block);
    });
    return blocks;
  }
}
