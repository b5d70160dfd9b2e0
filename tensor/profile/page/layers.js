// What a picture stacks: layers, each with a name and a colour, and which of them holds a block.

const OLDER = 'before the recording';
const NO_MODULE = 'no module';

function getColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function isDark() {
  return matchMedia('(prefers-color-scheme: dark)').matches;
}

class PurposeLayers {
  constructor(purposes) {
    this.layers = STACKED.map(purpose => ({name: purposes[purpose], colour: () => getColour(purposes[purpose])}));
    this.place = STACKED.map((_, purpose) => STACKED.indexOf(purpose));
  }

  of(recording, block, purpose) {
    return this.place[purpose];
  }

  ofRest(purpose) {
    return this.place[purpose];
  }
}

// "h.3.mlp.c_fc" belongs to "h.3", "wte" to itself: the path up to its first number, or its first part.
function getGroup(path) {
  const parts = path.split('.'), number = parts.findIndex(part => /^\d+$/.test(part));
  return parts.slice(0, number < 0 ? 1 : number + 1).join('.');
}

class ModuleLayers {
  constructor(recordings) {
    const names = new Set();

    for (const recording of recordings)
      for (let block = 0; block < recording.nBlocks; block++)
        names.add(this.getName(recording, block));
    names.delete(OLDER);
    names.delete(NO_MODULE);
    const sorted = [...names].sort((a, b) => a.localeCompare(b, 'en', {numeric: true}));
    const families = new Map();
    for (const name of sorted)
      if (/\.\d+$|^\d+$/.test(name)) {
        const family = name.replace(/\d+$/, '');
        families.set(family, [...families.get(family) ?? [], name]);
      }
    const others = sorted.filter(name => !/\.\d+$|^\d+$/.test(name));
    this.layers = [{name: OLDER, colour: () => getColour('older')}];
    others.forEach((name, i) => this.layers.push({name, colour: () => this.getHue(90 + 60 * i / others.length, i)}));
    for (const [family, members] of families)
      members.forEach((name, i) => this.layers.push(
        {name, family, colour: () => this.getHue(200 + 190 * i / members.length, i)}));
    this.layers.push({name: NO_MODULE, colour: () => getColour('workspace')});
    this.places = new Map(this.layers.map(({name}, i) => [name, i]));
    this.cache = new WeakMap();
  }

  getHue(hue, i) {
    const lightness = (isDark() ? 46 : 56) + (i % 2 ? 6 : 0);
    return `hsl(${Math.round(hue % 360)} 48% ${lightness}%)`;
  }

  getName(recording, block) {
    const path = recording.moduleOf(block);
    return path ? getGroup(path) : recording.first[block] < 0 ? OLDER : NO_MODULE;
  }

  of(recording, block) {
    if (!this.cache.has(recording))
      this.cache.set(recording, Uint16Array.from({length: recording.nBlocks}, (_, i) =>
        this.places.get(this.getName(recording, i))));
    return this.cache.get(recording)[block];
  }

  ofRest() {
    return 0;
  }
}

// Walks through the moments of a recording in order, with the blocks of each layer from the bottom to the top.
class Walk {
  constructor(recording, layers) {
    const n = layers.layers.length;

    Object.assign(this, {recording, layers, moment: 0});
    this.blocks = Array.from({length: n}, () => []);
    this.rest = new Float64Array(n);
    recording.rest.forEach((bytes, purpose) => { this.rest[layers.ofRest(purpose)] += bytes; });
    this.bytes = Float64Array.from(this.rest);
    for (const block of recording.byAge)
      if (recording.blocks.was[block] !== FREE)
        this.put(block, recording.blocks.was[block]);
  }

  find(list, block) {
    const {age} = this.recording;
    let low = 0, high = list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (age[list[middle]] < age[block])
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }

  put(block, purpose) {
    const layer = this.layers.of(this.recording, block, purpose), list = this.blocks[layer];
    list.splice(this.find(list, block), 0, block);
    this.bytes[layer] += this.recording.blocks.bytes[block];
  }

  take(block, purpose) {
    const layer = this.layers.of(this.recording, block, purpose), list = this.blocks[layer];
    list.splice(this.find(list, block), 1);
    this.bytes[layer] -= this.recording.blocks.bytes[block];
  }

  goTo(moment) {
    const {recording} = this;
    for (; this.moment < moment; this.moment++) {
      const i = this.moment;
      if (recording.from[i] !== FREE)
        this.take(recording.block[i], recording.from[i]);
      if (recording.to[i] !== FREE)
        this.put(recording.block[i], recording.to[i]);
    }
    return this;
  }

  // The bytes below a block; -1: it isn't there now.
  below(block) {
    let below = 0;
    for (let layer = 0; layer < this.blocks.length; layer++) {
      const list = this.blocks[layer], place = this.find(list, block);
      if (list[place] !== block) {
        below += Math.max(this.bytes[layer], 0);
        continue;
      }
      below += Math.max(this.rest[layer], 0);
      for (let i = 0; i < place; i++)
        below += this.recording.blocks.bytes[list[i]];
      return below;
    }
    return -1;
  }

  // Calls see (block, layer, bytes below it, its bytes); a block of -1 stands for what was there before the recording.
  each(see) {
    let below = 0;
    this.blocks.forEach((list, layer) => {
      let offset = below;
      if (this.rest[layer] > 0)
        see(-1, layer, offset, this.rest[layer]);
      offset += Math.max(this.rest[layer], 0);
      for (const block of list) {
        const bytes = this.recording.blocks.bytes[block];
        see(block, layer, offset, bytes);
        offset += bytes;
      }
      below += Math.max(this.bytes[layer], 0);
    });
  }
}
