// A plan for a budget from JavaScript, put onto the model and taken off.
import Ebb from 'gi://Ebb?version=1.0';
import GLib from 'gi://GLib';

import {check, checkFailsWith, equal, finish} from './support/check.js';

const config = Ebb.GptConfig.new();
[config.layers, config.width, config.heads, config.context, config.vocab] = [3, 32, 2, 32, 50];
const tokens = Ebb.Tensor.new_from_ints(new Array(256).fill(1), [8, 32]);
const model = Ebb.Gpt.new(config);
const optimizer = Ebb.AdamW.new(model, 1e-3);

// Without tidy () a loss would keep its graph until the garbage collector comes.
function step() {
    Ebb.tidy(() => model.loss(tokens, tokens).backward());
    optimizer.step();
    optimizer.zero_grad();
}

const most = Ebb.MemoryEstimate.new(model, null, () => {
    step();
    return true;
}).get_peak_total();
const {least_bytes: least, budget_bytes: budget} = Ebb.plan_memory(model, step, '1.5GiB');
equal(budget, 1.5 * 2 ** 30, 'units count');
check(least < most, 'no plan needs less than the step');
const plan = Ebb.plan_memory(model, step, least, 'cpu');
equal(plan.predicted_peak_bytes <= least, true, 'the budget is kept');
plan.apply();
const training = Ebb.TrainingState.new(model, optimizer, null);
plan.run_step(training, step);
plan.run_step(training, step);
plan.check_step(step);
plan.unapply();
equal(JSON.parse(plan.to_json()).blocks.length, 3, 'a row for each block');

// A step that reads values is planned by real ones.
const read = () => Ebb.tidy(() => model.loss(tokens, tokens).get_item());
checkFailsWith(Ebb.Error, () => Ebb.plan_memory(model, read, '1GiB'), 'are read');
check(Ebb.plan_memory(model, step, '1GiB', null, null, true).unplanned_peak_bytes > least, 'real steps give a plan');

// Blocks may move what they keep to a store.
const disk = new Ebb.DiskStore({folder: GLib.get_tmp_dir()});
const withDisk = Ebb.plan_memory(model, step, '1GiB', 'cpu', null, false, disk);
equal(withDisk.unplanned_peak_bytes, plan.unplanned_peak_bytes, 'the step without a plan uses no store');
checkFailsWith(TypeError, () => Ebb.plan_memory(model, step, '1GiB', 'cpu', null, true, disk), 'measured and a store');
checkFailsWith(Ebb.Error, () => Ebb.plan_memory(model, step, '1GiB', 'cpu', null, false, new Ebb.KeepStore()),
    'to a host store or a disk store');

// What steps throw is what comes out.
checkFailsWith(Ebb.Error, () => Ebb.plan_memory(model, step, 1000), 'is too small: the step needs at least');
checkFailsWith(RangeError, () => Ebb.plan_memory(model, () => {
    throw new RangeError('no more rows');
}, '1GiB'), 'no more rows');
checkFailsWith(Ebb.Error, () => Ebb.plan_memory(model, step, '10X'), 'is not a size');
for (const wrong of [null, -1, 0.5, {}])
    checkFailsWith(TypeError, () => Ebb.plan_memory(model, step, wrong), 'it must be a number of bytes');
for (const call of [() => Ebb.plan_memory(model, null, 5), () => plan.run_step(training, 7), () => plan.check_step()])
    checkFailsWith(TypeError, call, 'it must be a function of one training step');

// A step that lacks memory runs again: a lower plan takes over.
{
    const high = Ebb.plan_memory(model, step, '1GiB');
    high.apply();
    Ebb.memory_set_limit(null, high.predicted_peak_bytes - 1024);
    high.run_step(training, step);
    Ebb.memory_set_limit(null, 0);
    equal(high.n_lowered, 1, 'the plan is lowered');
}
finish();
