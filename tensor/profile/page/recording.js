// A recording as the page has it: blocks of memory, the changes to them, and the sums of each moment. The moment i is
// the one after i changes, so there is one more of them than of changes.
'use strict';

const FREE = 6;
const PHASES = ['forward', 'recompute', 'backward', 'optimizer', 'other'];
// From the bottom: what lasts lies below what comes and goes.
const STACKED = [0, 2, 1, 3, 4, 5];

function addUp(differences) {
  let sum = 0;
  return Float64Array.from(differences, difference => (sum += difference));
}

class Recording {
  constructor(data, purposes) {
    const {blocks, changes, texts} = data;

    Object.assign(this, {data, purposes, texts, blocks, name: data.name, device: data.device, rest: data.rest});
    this.nBlocks = blocks.bytes.length;
    this.nChanges = changes.to.length;
    this.block = addUp(changes.block);
    this.to = changes.to;
    this.launches = addUp(changes.launches);
    this.times = addUp(changes.microseconds);
    this.spans = [];
    for (let i = 0; i < data.spans.length; i += 3)
      this.spans.push({phase: data.spans[i], launches: data.spans[i + 1], seconds: data.spans[i + 2] / 1e6});
    this.followBlocks();
    this.addUpPurposes();
    this.spreadChanges();
  }

  // The first and the last change of each block; -1: it was there before; Infinity: it stayed.
  followBlocks() {
    this.first = new Float64Array(this.nBlocks).fill(-1);
    this.last = new Float64Array(this.nBlocks).fill(Infinity);
    this.from = new Uint8Array(this.nChanges);
    const now = Uint8Array.from(this.blocks.was);
    for (let i = 0; i < this.nChanges; i++) {
      const block = this.block[i];
      this.from[i] = now[block];
      now[block] = this.to[i];
      if (this.from[i] === FREE)
        this.first[block] = i;
      if (this.to[i] === FREE)
        this.last[block] = i;
    }
    // Blocks lie on each other in the order of their age.
    const order = Array.from({length: this.nBlocks}, (_, i) => i);
    order.sort((a, b) => this.first[a] - this.first[b] || a - b);
    this.age = new Uint32Array(this.nBlocks);
    order.forEach((block, i) => { this.age[block] = i; });
    this.byAge = order;
  }

  addUpPurposes() {
    const now = Float64Array.from(this.rest);
    this.peaks = new Float64Array(FREE + 1);
    this.totals = new Float64Array(this.nChanges + 1);
    for (let block = 0; block < this.nBlocks; block++)
      if (this.blocks.was[block] !== FREE)
        now[this.blocks.was[block]] += this.blocks.bytes[block];
    this.peaks.set(now);
    this.totals[0] = this.peaks[FREE] = now.reduce((sum, bytes) => sum + bytes, 0);
    this.peakMoment = 0;
    for (let i = 0; i < this.nChanges; i++) {
      const bytes = this.blocks.bytes[this.block[i]];
      let total = this.totals[i];
      if (this.from[i] === FREE)
        total += bytes;
      else
        now[this.from[i]] -= bytes;
      if (this.to[i] === FREE)
        total -= bytes;
      else
        now[this.to[i]] += bytes;
      this.totals[i + 1] = total;
      if (this.to[i] !== FREE)
        this.peaks[this.to[i]] = Math.max(this.peaks[this.to[i]], now[this.to[i]]);
      if (total > this.peaks[FREE]) {
        this.peaks[FREE] = total;
        this.peakMoment = i + 1;
      }
    }
  }

  // Where each moment begins on the axis: the changes between two launches are spread between them.
  spreadChanges() {
    this.at = {launches: new Float64Array(this.nChanges + 1), seconds: new Float64Array(this.nChanges + 1)};
    for (let i = 0, j = 0; i < this.nChanges; i = j) {
      while (j < this.nChanges && this.launches[j] === this.launches[i])
        j++;
      for (let k = i; k < j; k++)
        this.at.launches[k + 1] = this.launches[i] + (k - i + 1) / (j - i + 1);
    }
    for (let i = 0; i < this.nChanges; i++)
      this.at.seconds[i + 1] = this.times[i] / 1e6;
    this.ends = {launches: this.data.launches + 1, seconds: this.data.microseconds / 1e6};
  }

  // The purpose of every block at a moment.
  replay(moment) {
    const now = Uint8Array.from(this.blocks.was);
    for (let i = 0; i < moment; i++)
      now[this.block[i]] = this.to[i];
    return now;
  }

  text(column, block) {
    return this.texts[this.blocks[column][block]];
  }

  // The module that a block belongs to; a named tensor without one belongs to that of its name.
  moduleOf(block) {
    const module = this.text('module', block), name = this.text('name', block);
    return module || name.split('.').slice(0, -1).join('.');
  }

  phaseAt(moment) {
    const launches = moment > 0 ? this.launches[moment - 1] : 0;
    let phase = 4;
    for (const span of this.spans)
      if (span.launches <= launches)
        phase = span.phase;
    return phase;
  }

  // The number of each text with a star for each number in it: "h.3.mlp" becomes that of "h.*.mlp".
  makePatterns() {
    const numbers = new Map();
    this.patterns = this.texts.map(text => text.replace(/(?<![^. ])\d+(?![^. ])/g, '*'));
    return this.patterns.map(pattern => numbers.get(pattern) ?? (numbers.set(pattern, numbers.size), numbers.size - 1));
  }

  // Who holds most at a moment: tensors with the same op, module and shape are one row, and modules that differ in
  // numbers alone are the same one.
  holders(moment, n) {
    const now = this.replay(moment), rows = new Map();
    this.patternOf ??= this.makePatterns();
    const add = (key, row, bytes, tensors) => {
      const known = rows.get(key) ?? {...row, bytes: 0, tensors: 0, blocks: []};
      known.bytes += bytes;
      known.tensors += tensors;
      if (row.block !== undefined)
        known.blocks.push(row.block);
      rows.set(key, known);
    };
    for (let block = 0; block < this.nBlocks; block++) {
      if (now[block] === FREE)
        continue;
      const older = this.first[block] < 0;
      const key = [now[block], this.blocks.op[block], this.patternOf[this.blocks.module[block]],
                   this.patternOf[this.blocks.name[block]], this.blocks.shape[block], this.blocks.phase[block],
                   older].join();
      add(key, {purpose: now[block], block, older}, this.blocks.bytes[block], 1);
    }
    this.rest.forEach((bytes, purpose) => {
      if (bytes > 0)
        add(`rest ${purpose}`, {purpose, older: true}, bytes, 0);
    });
    return [...rows.values()].sort((a, b) => b.bytes - a.bytes || a.purpose - b.purpose).slice(0, n);
  }
}
