// The page around the pictures: the switches, what the pointer and the keys do, and who holds the memory at a moment.

const data = JSON.parse(document.getElementById('recordings').textContent);
const recordings = data.runs.map(run => new Recording(run, data.purposes));
const shared = {budget: data.budget, axis: 'launches', view: {}, layers: null, top: 1};
const charts = [];
let current = null; // the chart that the cursor is in

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className)
    element.className = className;
  if (text !== undefined)
    element.textContent = text;
  return element;
}

function getElement(id) {
  return document.getElementById(id);
}

// -- words ------------------------------------------------------------------------------------------------------------

function describeMaker(recording, block) {
  const op = recording.text('op', block), phase = PHASES[recording.blocks.phase[block]];
  return op ? `${op} (${phase})` : recording.first[block] < 0 ? 'before the recording' : phase === 'other' ? '' : phase;
}

// blocks: all that are meant; a text that differs among them is shown with a star for each number.
function describeHolder(recording, block, blocks = [block]) {
  const text = column => {
    const numbers = recording.blocks[column], number = numbers[block];
    return (blocks.every(other => numbers[other] === number) ? recording.texts : recording.patterns)[number];
  };
  return text('name') || text('module') || text('op') ||
    (recording.first[block] < 0 ? 'a tensor from before the recording' : 'a tensor outside of modules');
}

function describeLife(recording, blocks) {
  const first = Math.min(...blocks.map(block => recording.first[block]));
  const last = Math.max(...blocks.map(block => recording.last[block]));
  if (first < 0)
    return last === Infinity ? 'the whole step' : `from before to operation ${recording.launches[last]}`;
  return last === Infinity ? `operation ${recording.launches[first]} to the end`
    : `operations ${recording.launches[first]} to ${recording.launches[last]}`;
}

function describeSeconds(recording, block) {
  const first = recording.first[block], last = recording.last[block];
  const begin = first < 0 ? 0 : recording.times[first];
  const end = last === Infinity ? recording.data.microseconds : recording.times[last];
  return recording.data.microseconds > 0 ? `, ${((end - begin) / 1000).toFixed(1)} ms` : '';
}

// -- the tip ----------------------------------------------------------------------------------------------------------

function fillTip(chart) {
  const {recording, chosen, cursor} = chart, tip = getElement('tip');
  tip.replaceChildren();
  if (chosen !== null && chosen >= 0) {
    const bytes = recording.blocks.bytes[chosen], purpose = recording.replay(cursor)[chosen];
    const module = recording.text('module', chosen), maker = describeMaker(recording, chosen);
    const name = recording.text('name', chosen), op = recording.text('op', chosen);
    tip.append(make('strong', '', name || (module && op ? `${module}: ${op}` : describeHolder(recording, chosen))));
    tip.append(make('div', '', `${formatMebibytes(bytes)} MiB (${bytes} bytes), ` +
      `${recording.purposes[purpose] ?? 'free'}`));
    if (recording.text('shape', chosen))
      tip.append(make('div', '', recording.text('shape', chosen)));
    if (maker)
      tip.append(make('div', 'faint', module ? `made by ${maker} in ${module}` : `made by ${maker}`));
    tip.append(make('div', 'faint', `lives ${describeLife(recording, [chosen])}${describeSeconds(recording, chosen)}`));
  } else if (chosen !== null) {
    const {name} = shared.layers.layers[-1 - chosen];
    tip.append(make('strong', '', `${name}: other tensors from before the recording`));
    tip.append(make('div', 'faint', 'They neither change nor end in it.'));
  } else {
    tip.append(make('strong', '', `${formatMebibytes(recording.totals[cursor])} MiB in use`));
    tip.append(make('div', 'faint', PHASES[recording.phaseAt(cursor)]));
  }
}

function placeTip(x, y, above) {
  const tip = getElement('tip');
  tip.hidden = false;
  tip.style.left = tip.style.top = '0'; // near an edge it would be narrower
  const {width, height} = tip.getBoundingClientRect(), wide = document.documentElement.clientWidth;
  let left = x + 16, top = above ? y - height - 28 : y + 16;
  if (left + width > wide - 12)
    left = above ? wide - width - 12 : x - width - 16;
  if (top + height > innerHeight - 8)
    top = y - height - 16;
  tip.style.left = `${Math.max(left, 12)}px`;
  tip.style.top = `${Math.max(top, 8)}px`;
}

// -- who holds the memory at the cursor -------------------------------------------------------------------------------

function addCell(row, className, text) {
  const cell = row.appendChild(make('td', className, text));
  return cell;
}

function makeRow(chart, holder) {
  const {recording} = chart, row = make('tr'), {block} = holder, purpose = recording.purposes[holder.purpose];
  row.dataset.bytes = holder.bytes;
  addCell(row, 'number', formatMebibytes(holder.bytes));
  const cell = addCell(row, 'purpose', '');
  const swatch = cell.appendChild(make('span', 'swatch'));
  swatch.style.background = `var(--${purpose})`;
  cell.append(purpose);
  addCell(row, 'held', block === undefined ? 'other tensors from before the recording'
    : describeHolder(recording, block, holder.blocks) + (holder.tensors > 1 ? `, ${holder.tensors} times` : ''));
  addCell(row, 'op', block === undefined ? '' : describeMaker(recording, block));
  addCell(row, 'shape', block === undefined ? '' : recording.text('shape', block));
  addCell(row, 'life', block === undefined ? '' : describeLife(recording, holder.blocks));
  row.addEventListener('pointerenter', () => {
    chart.chosen = block ?? null;
    chart.marked = holder.blocks;
    chart.drawOverlay();
  });
  row.addEventListener('pointerleave', () => {
    chart.chosen = chart.marked = null;
    chart.drawOverlay();
  });
  return row;
}

function showMoment(chart) {
  const {recording, cursor} = chart, isPeak = cursor === recording.peakMoment;
  const launches = cursor > 0 ? recording.launches[cursor - 1] : 0;
  const name = recordings.length > 1 && recording.name ? `${recording.name}: ` : '';
  getElement('moment-title').textContent = `${name}the ten largest at ${isPeak ? 'the peak' : 'the cursor'}`;
  getElement('moment-text').textContent = `${formatMebibytes(recording.totals[cursor])} MiB in use, ` +
    `${PHASES[recording.phaseAt(cursor)]}, operation ${launches} of ${recording.data.launches}`;
  getElement('holders').replaceChildren(...recording.holders(cursor, 10).map(holder => makeRow(chart, holder)));
}

function moveTo(chart, moment, chosen) {
  for (const other of charts)
    if (other !== chart && (other.cursor !== null || other.chosen !== null)) {
      other.cursor = other.chosen = null;
      other.drawOverlay();
    }
  const changed = chart !== current || chart.cursor !== moment;
  charts.forEach(other => other.element.parentElement.classList.toggle('chosen', charts.length > 1 && other === chart));
  current = chart;
  chart.cursor = moment;
  chart.chosen = chosen;
  chart.marked = null;
  chart.drawOverlay();
  if (changed)
    showMoment(chart);
}

// -- the pointer and the keys -----------------------------------------------------------------------------------------

function point(chart, event) {
  const box = chart.element.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  const moment = chart.momentAt(x);
  if (moment < 0 || x < chart.plot.x) {
    getElement('tip').hidden = true;
    return;
  }
  moveTo(chart, moment, chart.blockAt(moment, chart.bytesAt(y)));
  fillTip(chart);
  placeTip(event.clientX, event.clientY, event.pointerType !== 'mouse');
}

function setView(from, to) {
  const whole = getWhole();
  shared.view = {from: Math.max(from, 0), to: Math.min(to, whole)};
  getElement('whole').hidden = shared.view.from === 0 && shared.view.to === whole;
  charts.forEach(chart => chart.draw());
}

function getWhole() {
  return Math.max(...recordings.map(recording => recording.ends[shared.axis]), 1e-6);
}

// A drag with the mouse enlarges what it goes across.
function watchDrags(chart) {
  let begin = null;
  const band = chart.element.appendChild(make('div'));
  band.hidden = true;
  band.style.cssText = `position:absolute;top:${MARGIN.top}px;bottom:${MARGIN.bottom}px;pointer-events:none;` +
    'background:var(--accent);opacity:0.25';
  chart.element.addEventListener('pointerdown', event => {
    point(chart, event);
    if (event.pointerType !== 'mouse' || event.button !== 0)
      return;
    begin = event.clientX - chart.element.getBoundingClientRect().left;
    chart.element.setPointerCapture(event.pointerId);
  });
  chart.element.addEventListener('pointermove', event => {
    const x = event.clientX - chart.element.getBoundingClientRect().left;
    point(chart, event);
    band.hidden = begin === null || Math.abs(x - begin) < 8;
    band.style.left = `${Math.min(x, begin)}px`;
    band.style.width = `${Math.abs(x - begin)}px`;
  });
  chart.element.addEventListener('pointerup', event => {
    const x = event.clientX - chart.element.getBoundingClientRect().left;
    if (begin !== null && Math.abs(x - begin) >= 8)
      setView(...[chart.positionAt(x), chart.positionAt(begin)].sort((a, b) => a - b));
    begin = null;
    band.hidden = true;
  });
  chart.element.addEventListener('pointercancel', () => {
    begin = null;
    band.hidden = true;
  });
  chart.element.addEventListener('pointerleave', event => {
    getElement('tip').hidden = getElement('tip').hidden || event.pointerType === 'mouse';
  });
}

function goTo(chart, moment, chosen) {
  const at = chart.recording.at[shared.axis][moment], {from, to} = shared.view;
  if (at < from || at > to)
    setView(at - (to - from) / 2, at + (to - from) / 2);
  moveTo(chart, moment, chosen);
}

function choose(chart, step) {
  const blocks = chart.blocksAt(chart.cursor), place = blocks.indexOf(chart.chosen);
  const next = place < 0 ? (step > 0 ? 0 : blocks.length - 1) : Math.min(Math.max(place + step, 0), blocks.length - 1);
  moveTo(chart, chart.cursor, blocks[next] ?? null);
}

function press(chart, event) {
  const {recording} = chart, step = event.shiftKey ? 20 : 1, cursor = chart.cursor ?? recording.peakMoment;
  const keep = moment => goTo(chart, Math.min(Math.max(moment, 0), recording.nChanges), chart.chosen);
  const actions = {
    ArrowLeft: () => keep(cursor - step),
    ArrowRight: () => keep(cursor + step),
    Home: () => keep(0),
    End: () => keep(recording.nChanges),
    ArrowUp: () => choose(chart, 1),
    ArrowDown: () => choose(chart, -1),
    p: () => goTo(chart, recording.peakMoment, null),
    Escape: () => setView(0, getWhole()),
  };
  const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!action || event.ctrlKey || event.metaKey || event.altKey)
    return;
  event.preventDefault();
  if (chart.cursor === null)
    moveTo(chart, cursor, null);
  action();
  fillTip(chart);
  const box = chart.element.getBoundingClientRect();
  placeTip(box.left + chart.xOf(recording.at[shared.axis][chart.cursor]), box.top + chart.plot.y, false);
}

// -- the page ---------------------------------------------------------------------------------------------------------

function addLegendItem(text, background, className) {
  const item = getElement('legend').appendChild(make('li'));
  const swatch = item.appendChild(make('span', `swatch ${className}`));
  swatch.style.background = background;
  item.append(text);
}

function showLegend() {
  const {layers} = shared.layers, legend = getElement('legend');
  const used = new Set();
  for (const recording of recordings) {
    for (let block = 0; block < recording.nBlocks; block++)
      used.add(shared.layers.of(recording, block, recording.blocks.was[block]));
    recording.to.forEach((to, i) => to !== FREE && used.add(shared.layers.of(recording, recording.block[i], to)));
    recording.rest.forEach((bytes, purpose) => bytes > 0 && used.add(shared.layers.ofRest(purpose)));
  }
  used.delete(undefined);
  used.delete(-1);
  legend.replaceChildren();
  for (let i = 0; i < layers.length; i++) {
    if (!used.has(i))
      continue;
    const {family} = layers[i], members = family === undefined ? [] : layers.filter(layer => layer.family === family);
    if (members.length < 3) {
      addLegendItem(layers[i].name, layers[i].colour(), '');
      continue;
    }
    addLegendItem(`${members[0].name} to ${members[members.length - 1].name}`,
                  `linear-gradient(to right, ${members.map(member => member.colour()).join(', ')})`, 'family');
    i += members.length - 1;
  }
  legend.append(make('li', 'break'), make('li', 'lead', 'Along the axis:'));
  PHASES.slice(0, 4).forEach((phase, i) => {
    if (recordings.some(recording => recording.spans.some(span => span.phase === i)))
      addLegendItem(phase, `var(--${phase === 'optimizer' ? 'step' : phase})`, 'thin');
  });
}

function restack() {
  const stack = document.querySelector('input[name=stack]:checked').value;
  shared.axis = document.querySelector('input[name=axis]:checked').value;
  shared.layers = stack === 'module' ? new ModuleLayers(recordings) : new PurposeLayers(data.purposes);
  showLegend();
}

function describeRun(recording) {
  const {dry, launches, microseconds} = recording.data, peak = recording.peaks[FREE];
  const seconds = microseconds / 1e6;
  return `peak ${formatMebibytes(peak)} MiB (${peak} bytes) on ${recording.device}, ${launches} operations` +
    (seconds > 0 ? `, ${dry ? `about ${Number(seconds.toPrecision(3))}` : seconds.toFixed(3)} s` : '') +
    (dry ? ', predicted by a dry run' : '');
}

function addRun(recording) {
  const section = getElement('runs').appendChild(make('section', 'run')), peak = recording.peaks[FREE];
  section.append(make('h2', '', recording.name || 'This run'));
  section.append(make('p', 'numbers', describeRun(recording)));
  const element = section.appendChild(make('div', 'chart'));
  element.tabIndex = 0;
  element.setAttribute('role', 'application');
  element.setAttribute('aria-label', `Memory of ${recording.name || 'the run'}: peak ${formatMebibytes(peak)} MiB. ` +
    'Arrow keys go from change to change and from tensor to tensor.');
  section.dataset.peakBytes = peak;
  section.dataset.purposeBytes = JSON.stringify([...recording.peaks.slice(0, FREE)]);
  const chart = new Chart(recording, element, shared);
  charts.push(chart);
  watchDrags(chart);
  element.addEventListener('keydown', event => press(chart, event));
  element.addEventListener('blur', () => { getElement('tip').hidden = true; });
}

function checkSums(recording) {
  recording.data.peak.forEach((bytes, purpose) => {
    if (Math.max(bytes, 0) !== Math.max(recording.peaks[purpose], 0))
      throw new Error(`the changes of ${recording.name} add up to ${recording.peaks[purpose]} bytes, not to ${bytes}`);
  });
}

function start() {
  const peaks = recordings.map(recording => recording.peaks[FREE]), highest = Math.max(...peaks, 1);
  shared.top = 1.1 * (shared.budget > highest && shared.budget < 1.6 * highest ? shared.budget : highest);
  const words = peaks.length > 1 ? `peaks of ${peaks.map(formatMebibytes).join(' and ')} MiB`
    : `peak ${formatMebibytes(peaks[0])} MiB`;
  getElement('summary').textContent = words[0].toUpperCase() + words.slice(1) +
    (shared.budget > 0 ? ` for a budget of ${formatMebibytes(shared.budget)} MiB` : '') + `. Ebb ${data.version}`;
  getElement('axis').hidden = recordings.some(recording => recording.data.microseconds === 0);
  recordings.forEach(addRun);
  recordings.forEach(checkSums);
  restack();
  setView(0, getWhole());
  const top = charts[peaks.indexOf(Math.max(...peaks))];
  moveTo(top, top.recording.peakMoment, null);
  for (const input of document.querySelectorAll('input'))
    input.addEventListener('change', () => {
      restack();
      charts.forEach(chart => { chart.chosen = null; });
      setView(0, getWhole());
    });
  getElement('peak').addEventListener('click', () => goTo(current, current.recording.peakMoment, null));
  addEventListener('scroll', () => { getElement('tip').hidden = true; }, {passive: true});
  getElement('whole').addEventListener('click', () => setView(0, getWhole()));
  new ResizeObserver(() => charts.forEach(chart => chart.draw())).observe(getElement('runs'));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    showLegend();
    charts.forEach(chart => chart.draw());
  });
}

addEventListener('error', event => { document.body.dataset.error = event.message; });
try {
  start();
  document.body.dataset.ready = 'true';
} catch (error) {
  document.body.dataset.error = error.message;
  getElement('summary').textContent = `The picture can't be drawn: ${error.message}`;
  throw error;
}
