// DeepSpeed's interface and OneFlow's switch, in JavaScript.
import Ebb from 'gi://Ebb?version=1.0';

import {check, checkFails, equal, finish} from './support/check.js';

const defaults = {
    partition_activations: false,
    cpu_checkpointing: false,
    contiguous_memory_optimization: false,
    number_checkpoints: null,
    synchronize_checkpoint_boundary: false,
    profile: false,
};
const config = {
    zero_optimization: {stage: 2},
    activation_checkpointing: {cpu_checkpointing: true, number_checkpoints: 4},
};

// -- configuring

check(!Ebb.checkpointing_is_configured(), 'configured from the beginning');
equal(Ebb.checkpointing_get_config(), defaults, 'before');
Ebb.checkpointing_configure();
check(Ebb.checkpointing_is_configured(), 'not configured');
equal(Ebb.checkpointing_get_config(), defaults, 'defaults');
for (const given of [config, JSON.stringify(config)]) {
    Ebb.checkpointing_configure(null, given);
    equal(Ebb.checkpointing_get_config(), {...defaults, cpu_checkpointing: true, number_checkpoints: 4}, 'JSON');
    Ebb.checkpointing_configure(null, given, {checkpoint_in_cpu: false, synchronize: true, profile: undefined});
    equal(Ebb.checkpointing_get_config(), {...defaults, number_checkpoints: 4, synchronize_checkpoint_boundary: true},
        'arguments');
}
for (const [args, ...words] of [
    [[null, {activation_checkpointing: {cpu: true}}], '"cpu"', 'its keys are'],
    [[null, {activation_checkpointing: {profile: 1}}], 'profile is 1', 'true or false'],
    [[null, {cpu_checkpointing: true}], 'stands outside'],
    [[null, 'nothing.json'], 'nothing.json'],
    [[null, null, {num_checkpoints: 1.5}], 'num_checkpoints is 1.5', 'whole number'],
    [[null, null, {partition_activations: true}], 'there is no mpu'],
    [[null, null, {contiguous_checkpointing: true}], 'number_checkpoints'],
    [[null, null, {cpu: true}], 'no argument "cpu"', 'the arguments are'],
])
    checkFails(() => Ebb.checkpointing_configure(...args), ...words);
equal(Ebb.checkpointing_get_config(), {...defaults, number_checkpoints: 4, synchronize_checkpoint_boundary: true},
    'after errors');

// -- using it

function makeMlp() {
    Ebb.manual_seed(3);
    return Ebb.sequential(Ebb.Linear.new(8, 16, true), Ebb.Tanh.new(), Ebb.Dropout.new(0.3),
        Ebb.Linear.new(16, 8, true));
}

function gradsOf(model, call) {
    Ebb.manual_seed(7);
    call(Ebb.randn([4, 8])).sum().backward();
    return model.get_parameters(true).map(parameter => parameter.grad);
}

const plain = makeMlp();
const expected = gradsOf(plain, x => plain.run(x));
const sameGrads = (grads, message) =>
    check(grads.length === expected.length && grads.every((grad, i) => grad.equal(expected[i])), message);

for (const overrides of [{}, {checkpoint_in_cpu: true}, {synchronize: true}]) {
    Ebb.checkpointing_configure(null, null, overrides);
    const model = makeMlp();
    const calls = [];
    sameGrads(gradsOf(model, x => {
        const [y, z] = Ebb.checkpointing_checkpoint((a, b) => {
            calls.push(Ebb.is_recomputing());
            return [model.run(a), b];
        }, x, Ebb.ones([1]));
        equal(z.item(), 1, 'the second result');
        return y;
    }), 'gradients of a function');
    equal(calls, [false, true], 'calls');
    const wrapped = Ebb.checkpoint_wrapper(makeMlp(), Ebb.checkpointing_get_options());
    sameGrads(gradsOf(wrapped, x => wrapped.run(x)), 'gradients of a module');
    equal(Ebb.checkpoint_get_n_recomputes(wrapped), 1, 'recomputes');
    Ebb.checkpointing_reset();
}
equal(Ebb.checkpointing_checkpoint(x => x.add(1), Ebb.ones([1])).item(), 2, 'one tensor');
checkFails(() => Ebb.checkpointing_checkpoint(() => {
    throw new Error('no luck');
}, Ebb.ones([1])), 'no luck');

Ebb.checkpointing_configure(null, null, {profile: true});
const model = makeMlp();
sameGrads(gradsOf(model, x => Ebb.checkpointing_checkpoint(y => model.run(y), x)), 'gradients with a profile');
const profile = Ebb.checkpointing_get_profile();
equal([profile.forwards, profile.backwards], [1, 1], 'profile');
check(profile.forward_seconds > 0 && profile.backward_seconds > 0, `profile: ${JSON.stringify(profile)}`);

// -- the switch

const switched = makeMlp();
const notes = [];
switched.connect('notify::activation-checkpointing', self => notes.push(self.activation_checkpointing));
for (const on of [true, true, false, true]) {
    switched.activation_checkpointing = on;
    equal([switched.activation_checkpointing, Ebb.checkpoint_is_wrapped(switched)], [on, on], 'switched');
}
equal(notes, [true, false, true], 'notified');
sameGrads(gradsOf(switched, x => switched.run(x)), 'gradients with the switch');
checkFails(() => Ebb.ModuleList.new().set_activation_checkpointing(true), 'ModuleList: activation_checkpointing');

finish();
