// A training from JavaScript: batches and a loss by functions, one step, its signals, and the report.
import Ebb from 'gi://Ebb?version=1.0';

import {check, checkFails, equal, finish} from './support/check.js';

function makeBatch(number) {
    const batch = Ebb.Args.new(Ebb.ArgsKind.DICT);
    if (number < 2)
        batch.add_tensor('x', Ebb.tensor([[1, 2, 3], [4, 5, number]], Ebb.DType.F32));
    return batch; // an empty one ends the data
}

Ebb.manual_seed(1);
const model = Ebb.Linear.new(3, 1, true), signals = [];
const before = model.get_parameters(true)[0].toArray().slice();
const trainer = Ebb.Trainer.new(model, null, null, null);
trainer.set_batch_func(makeBatch);
trainer.set_loss_func((linear, batch) => {
    const loss = Ebb.mean(Ebb.square(linear.run(batch.get_tensor(batch.find('x')))), null, false);
    trainer.add_metric('loss', loss);
    return loss;
});
trainer.connect('stepped', (_, step, loss) => signals.push([step, loss]));

trainer.prepare(null);
trainer.run_step(null);
equal([trainer.step, signals.length, signals[0][0]], [1, 1, 1], 'a step');
check(signals[0][1] === trainer.loss && trainer.loss > 0, 'the loss of a step');
check(before.some((value, i) => value !== model.get_parameters(true)[0].toArray()[i]), 'a step moves parameters');
equal(trainer.get_metrics().get_double(0), trainer.loss, 'a metric');

trainer.run(null);
equal([trainer.step, trainer.is_done(), JSON.parse(trainer.to_json()).losses.length], [2, true, 2], 'the data ends');
const options = new Ebb.TrainerOptions({steps: 2, epochs: 1});
checkFails(() => Ebb.Trainer.new(model, null, null, options), 'steps 2 and epochs 1');
finish();
