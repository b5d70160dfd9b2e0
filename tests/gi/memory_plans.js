// A plan for a budget from JavaScript, put onto the model and taken off.
import Ebb from 'gi://Ebb?version=1.0';

import {check, equal, finish} from './support/check.js';

const config = Ebb.GptConfig.new();
[config.layers, config.width, config.heads, config.context, config.vocab] = [3, 32, 2, 32, 50];
const model = Ebb.Gpt.new(config);
const optimizer = Ebb.AdamW.new(model, 1e-3);
const tokens = Ebb.Tensor.new_from_ints(new Array(256).fill(1), [8, 32]);

// Without tidy () a loss would keep its graph until the garbage collector comes.
function step() {
    Ebb.tidy(() => model.loss(tokens, tokens).backward());
    optimizer.step();
    optimizer.zero_grad();
    return true;
}

const most = Ebb.MemoryEstimate.new(model, null, step).get_peak_total();
const least = Ebb.MemoryPlan.new(model, null, step, most).least_bytes;
check(least < most, 'no plan needs less than the step');
const plan = Ebb.MemoryPlan.new(model, null, step, least);
equal(plan.predicted_peak_bytes <= least, true, 'the budget is kept');
plan.apply();
const training = Ebb.TrainingState.new(model, optimizer, null);
plan.run_step(training, step);
plan.run_step(training, step);
plan.check_step(step);
plan.unapply();
equal(JSON.parse(plan.to_json()).blocks.length, 3, 'a row for each block');
let message = null;
try {
    Ebb.MemoryPlan.new(model, null, step, 1000);
} catch (error) {
    message = error.message;
}
check(message.includes('is too small: the step needs at least'), message);
finish();
