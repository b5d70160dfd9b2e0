// What a checkpoint promises, in JavaScript: any call, the same module, the same gradients, and nothing left behind.
import Ebb from 'gi://Ebb?version=1.0';
import GObject from 'gi://GObject';
import System from 'system';

import {check, equal, finish} from './support/check.js';

function messageOf(fn) {
    try {
        fn();
    } catch (error) {
        return error.message;
    }
    return null;
}

const collect = () => {
    for (let i = 0; i < 3; i++)
        System.gc();
};
const usedBytes = () => Ebb.memory_get_stats(Ebb.Device.get_cpu()).get_total();
const same = (a, b) => a === null || b === null ? a === b : a.equal(b);

function sameAll(a, b, message) {
    equal(a.length, b.length, `${message}: how many`);
    a.forEach((x, i) => check(same(x, b[i]), `${message}: number ${i} differs`));
}

const mlp = () => Ebb.sequential(Ebb.Linear.new(8, 16, true), Ebb.Tanh.new(), Ebb.Dropout.new(0.3),
    Ebb.Linear.new(16, 8, true));

// Output and gradients of a step from a fixed seed, and where the generator ends.
function train(model, x) {
    Ebb.manual_seed(99);
    model.zero_grad();
    const y = model.run(x);
    y.mul(y).sum().backward();
    return [...model.get_parameters(true).map(p => p.grad), y.detach(),
        Ebb.tensor([Ebb.Generator.get_default().get_offset()])];
}

const counters = model => model.get_modules().map(module => module.get_forward_counter());
const zeros = model => model.get_modules().map(() => 0);

// -- any call

// Gives back what it got, with the product of some of its tensors, bent.
const Echo = GObject.registerClass(class Echo extends Ebb.Module {
    vfunc_forward(args) {
        this.seen.push(describe(args));
        const result = Ebb.Args.new(Ebb.ArgsKind.TUPLE);
        result.add_args('all', args);
        result.add_tensor('y', args.get_tensor(0).mul(args.get_args(4).get_tensor(1)).mul(args.get_tensor(5)).tanh()
            .exp());
        return result;
    }
});

function describe(args) {
    const parts = [];
    for (let i = 0; i < args.get_length(); i++) {
        const value = {
            [Ebb.ValueKind.NONE]: () => null,
            [Ebb.ValueKind.BOOL]: () => args.get_boolean(i),
            [Ebb.ValueKind.INT]: () => args.get_int(i),
            [Ebb.ValueKind.DOUBLE]: () => `${args.get_double(i)}d`,
            [Ebb.ValueKind.STRING]: () => `"${args.get_string(i)}"`,
            [Ebb.ValueKind.TENSOR]: () => [...args.get_tensor(i).toArray()],
            [Ebb.ValueKind.ARGS]: () => describe(args.get_args(i)),
            [Ebb.ValueKind.OBJECT]: () => objects.indexOf(args.get_object(i)),
        }[args.get_value_kind(i)]();
        parts.push([args.get_key(i), value]);
    }
    return [args.get_kind(), parts];
}

const objects = [new GObject.Object(), Ebb.Linear.new(2, 2, true)];

function fill(args, x, y) {
    const list = Ebb.Args.new(Ebb.ArgsKind.LIST);
    const deep = Ebb.Args.new(Ebb.ArgsKind.DICT);
    list.add_none(null);
    list.add_tensor(null, y);
    list.add_args(null, deep);
    deep.add_tensor('z', x);
    deep.add_object('a', objects[1]);
    args.add_tensor(null, x);
    args.add_none(null);
    args.add_double(null, 0.1);
    args.add_string(null, 'naïve');
    args.add_args(null, list);
    args.add_tensor('again', y);
    args.add_boolean('flag', false);
    args.add_int('n', -5);
    args.add_object('object', objects[0]);
    return args;
}

{
    const [x, y] = [Ebb.tensor([1, 2, 3], Ebb.DType.F32), Ebb.tensor([0.5, 1, -1])];
    y.set_requires_grad(true);
    const args = fill(Ebb.Args.new(Ebb.ArgsKind.TUPLE), x, y);
    const module = new Echo();
    module.seen = [];
    const grads = [false, true].map(wrapped => {
        y.set_grad(null);
        if (wrapped)
            Ebb.checkpoint_wrapper(module);
        const result = module.call(args);
        equal(describe(result.get_args(0)), describe(args), 'what comes out');
        result.get_tensor(1).sum().backward();
        return y.grad;
    });
    check(grads[0].equal(grads[1]), 'gradient of a nested tensor');
    equal(module.seen.length, 3, 'forwards');
    module.seen.forEach(seen => equal(seen, describe(args), 'what goes in'));
}

// -- the same module

{
    const module = mlp();
    const [names, state] = [module.get_parameter_names(true), describe(module.get_state_dict())];
    check(Ebb.checkpoint_wrapper(module) === module, 'another object');
    check(Ebb.checkpoint_wrapper(module) === module, 'another object, wrapped twice');
    equal(module.get_parameter_names(true), names, 'names');
    equal(describe(module.get_state_dict()), state, 'state dict');
    equal([1, 2, 3].map(() => Ebb.checkpoint_unwrap(module)), [true, true, false], 'unwrapping');
}

// -- gradients, counters, modes

{
    const x = Ebb.randn([5, 8]);
    const model = Ebb.sequential(mlp(), mlp());
    const plain = train(model, x);
    const ways = {
        'the whole': () => Ebb.checkpoint_wrapper(model),
        'the whole twice': () => Ebb.checkpoint_wrapper(model),
        'and each layer': () => Ebb.checkpoint_wrap_each(model, Ebb.Linear.$gtype),
    };
    for (const [name, wrap] of Object.entries(ways)) {
        wrap();
        sameAll(train(model, x), plain, name);
        equal(counters(model), zeros(model), `counters of ${name}`);
    }
    Ebb.push_checkpointing_disabled();
    equal(model.run(x) && counters(model), zeros(model), 'counters when disabled');
    sameAll(train(model, x), plain, 'disabled');
    Ebb.pop_checkpointing_disabled();
    Ebb.push_grad_enabled(false);
    equal(model.run(x) && counters(model), zeros(model), 'counters without gradients');
    Ebb.pop_grad_enabled();
}

const Where = GObject.registerClass(class Where extends Ebb.Module {
    vfunc_forward1(x) {
        const child = this.get_child('child');
        const y = child === null ? x.mul(x) : child.call1(x.mul(x));
        log.push(`${this.name}${Ebb.is_checkpointing() ? 'c' : ''}${Ebb.is_recomputing() ? 'r' : ''}`);
        return y.exp();
    }
});
const log = [];

{
    const [inner, outer] = [new Where(), new Where()];
    [inner.name, outer.name] = ['b', 'a'];
    outer.register_child('child', inner);
    Ebb.checkpoint_wrapper(inner);
    Ebb.checkpoint_wrapper(outer);
    const x = Ebb.ones([2]);
    x.set_requires_grad(true);
    outer.run(x).sum().backward();
    equal(log, ['bc', 'ac', 'bcr', 'ar', 'br'], 'where forwards are');
    check(!Ebb.is_checkpointing() && !Ebb.is_recomputing(), 'where it is afterwards');
}

// -- errors

const Plots = GObject.registerClass(class Plots extends Ebb.Module {
    vfunc_forward1(x) {
        const y = this.get_child('mlp').call1(x).tanh();
        pass(Ebb.is_recomputing() ? 'recompute' : 'forward');
        return y.exp();
    }
});
let plot = null; // where the next failure is to be

function pass(place) {
    if (plot !== place)
        return;
    plot = null;
    throw new Error(`no luck in ${place}: é`);
}

const Store = GObject.registerClass(class Store extends Ebb.SavedTensorHooks {
    vfunc_pack(tensor) {
        pass('pack');
        return Ebb.Handle.new(tensor);
    }

    vfunc_unpack(handle) {
        pass('unpack');
        return handle.get_tensor();
    }
});

{
    const x = Ebb.randn([5, 8]);
    const module = new Plots();
    module.register_child('mlp', mlp());
    const plain = train(module, x);
    const options = Ebb.CheckpointOptions.new();
    options.set_store(new Store());
    options.set_policy(() => {
        pass('policy');
        return Ebb.CheckpointPolicy.MUST_RECOMPUTE;
    });
    options.set_recompute_func((_module, phase) => {
        pass(phase === Ebb.RecomputePhase.BEGIN ? 'begin' : 'end');
        return true;
    });
    for (const depth of [1, 2]) {
        Ebb.checkpoint_wrapper(module, options);
        for (const place of ['forward', 'recompute', 'policy', 'begin', 'end', 'pack', 'unpack']) {
            module.zero_grad();
            collect();
            const before = usedBytes();
            plot = place;
            let [y, loss] = [null, null];
            const message = messageOf(() => {
                y = module.run(x);
                loss = y.mul(y).sum();
                loss.backward();
            });
            check(message?.includes(`no luck in ${place}: é`), `${place} at ${depth}: "${message}"`);
            check(!message?.includes('\n'), `${place} at ${depth}: more than a line`);
            equal(plot, null, `${place} at ${depth}: nothing failed`);
            check(!Ebb.is_checkpointing() && !Ebb.is_recomputing() && Ebb.is_grad_enabled(), `${place}: flags`);
            [y, loss] = [y?.dispose(), loss?.dispose()];
            module.zero_grad();
            collect();
            equal(usedBytes(), before, `${place} at ${depth}: bytes`);
            equal(counters(module), zeros(module), `${place} at ${depth}: counters`);
            sameAll(train(module, x), plain, `${place} at ${depth}: the next step`);
        }
    }
}

// -- lifetime

{
    const module = mlp();
    Ebb.checkpoint_wrapper(module);
    const loss = Ebb.tidy(() => {
        const y = module.run(Ebb.ones([2, 8]));
        return y.mul(y).sum();
    });
    module.get_modules().forEach(part => equal(part.get_forward_counter(), 1, 'counter before backward'));
    loss.backward();
    equal(counters(module), zeros(module), 'counters after backward');
}

finish();
