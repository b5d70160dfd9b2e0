// Options of a checkpoint as an object: what each may be, and that a mistake is told at the call.
import Ebb from 'gi://Ebb?version=1.0';

import {check, checkFailsWith, finish} from './support/check.js';

const checkFails = (fn, ...words) => checkFailsWith(TypeError, fn, ...words);
const linear = () => Ebb.Linear.new(4, 4, true);
const names = ['offload_to_cpu', 'preserve_rng_state', 'early_stop', 'retain_recomputed', 'synchronize', 'profile',
    'determinism_check', 'policy', 'store', 'on_recompute', 'options'];

// -- what is right

{
    const x = Ebb.ones([2, 4]);
    const phases = [];
    const module = Ebb.sequential(linear(), Ebb.Tanh.new());
    module.run(x).sum().backward();
    const plain = module.get_parameters(true).map(parameter => parameter.grad);
    const {NONE, DEFAULT, VALUES} = Ebb.DeterminismCheck;
    const good = [{}, undefined, null, Ebb.CheckpointOptions.new(), {early_stop: undefined, store: null},
        {offload_to_cpu: true}, {preserve_rng_state: false}, {early_stop: false}, {retain_recomputed: true},
        ...['none', 'default', 'values', null, NONE, DEFAULT, VALUES].map(value => ({determinism_check: value})),
        {store: Ebb.HostStore.new()}, {store: Ebb.DiskStore.new('/tmp')}, {policy: 'selective'},
        {policy: Ebb.save_nth_product(1)}, {options: Ebb.CheckpointOptions.new(), early_stop: undefined},
        {options: null, early_stop: false}, {on_recompute: (self, phase) => phases.push(self === module, phase)}];
    for (const options of good) {
        module.zero_grad();
        Ebb.checkpoint_wrapper(module, options);
        module.run(x).sum().backward();
        check(module.get_parameters(true).every((parameter, i) => parameter.grad.equal(plain[i])), 'another gradient');
        check(Ebb.checkpoint_get_n_recomputes(module) > 0, 'nothing was recomputed');
        Ebb.checkpoint_unwrap(module);
    }
    check(JSON.stringify(phases) === '[true,"begin",true,"end"]', `phases: ${JSON.stringify(phases)}`);
}

// Those that are given all at once are those that are taken.
{
    const module = Ebb.sequential(linear(), Ebb.Tanh.new()), phases = [], options = Ebb.CheckpointOptions.new();
    options.set_recompute_func((self, phase) => phases.push(phase));
    Ebb.checkpoint_wrapper(module, {options});
    module.run(Ebb.ones([2, 4])).sum().backward();
    check(phases.length === 2, `options as an option: ${phases.length} calls`);
}

// -- what is wrong

{
    const module = Ebb.sequential(linear(), linear());
    const wrap = options => Ebb.checkpoint_wrapper(module, options);
    const calls = {
        checkpoint_wrapper: wrap,
        checkpoint_wrap_each: options => Ebb.checkpoint_wrap_each(module, Ebb.Linear.$gtype, options),
        checkpoint_wrap_uniform: options => Ebb.checkpoint_wrap_uniform(module, 1, options),
        checkpoint_wrap_block: options => Ebb.checkpoint_wrap_block(module, 1, options),
        checkpoint_sequential_full: options => Ebb.checkpoint_sequential_full(module, 1, null, options),
    };
    for (const [name, call] of Object.entries(calls)) {
        for (const unknown of ['use_reentrant', 'recompute_func', 'policy_selective'])
            checkFails(() => call({[unknown]: true}), `${name} has no option ${unknown}`, names.join(', '));
        checkFails(() => call('selective'), name, 'selective', 'must be an object');
    }
    for (const name of names.slice(0, 6)) {
        for (const value of ['no', 1, null])
            checkFails(() => wrap({[name]: value}), `${name}: `, `${value}`, 'must be true or false');
    }
    for (const value of ['value', '', true, 7]) {
        checkFails(() => wrap({determinism_check: value}), 'determinism_check', `${value}`,
            "'none', 'default' or 'values'");
    }
    for (const value of ['/tmp', 3])
        checkFails(() => wrap({store: value}), 'store', `${value}`, 'Ebb.DiskStore.new');
    for (const value of ['selective', 3, {early_stop: false}, Ebb.HostStore.new()])
        checkFails(() => wrap({options: value}), 'options: ', 'must be an Ebb.CheckpointOptions');
    checkFails(() => wrap({options: Ebb.CheckpointOptions.new(), profile: false}), 'options and profile');
    checkFails(() => wrap({store: Ebb.HostStore.new(), offload_to_cpu: true}), 'store and offload_to_cpu');
    checkFails(() => wrap({on_recompute: 'log'}), "on_recompute: 'log'", 'function of (module, phase)');
    checkFails(() => wrap({policy: 'selectiv'}), "policy: 'selectiv'", "'attention'");
    check(module.get_modules().every(each => !Ebb.checkpoint_is_wrapped(each)), 'wrapped in spite of an error');
}

finish();
