// The same small training from JavaScript, plain and wrapped; and memory that is freed without the garbage collector.
import Ebb from 'gi://Ebb?version=1.0';
import GObject from 'gi://GObject';

import {check, checkFails, checkFailsWith, equal, finish} from './support/check.js';

const usedBytes = () => Ebb.memory_get_stats(Ebb.Device.get_cpu()).get_total();

const Scaled = GObject.registerClass(class Scaled extends Ebb.Module {
    _init(inner, factor) {
        super._init();
        this.register_child('inner', inner);
        this.factor = factor;
    }

    vfunc_forward1(x) {
        if (this.failure)
            throw new Error(this.failure);
        return this.get_child('inner').call1(x).tanh().mul(this.factor);
    }
});

function train(wrap) {
    Ebb.manual_seed(5);
    const model = Ebb.sequential(Ebb.Linear.new(8, 16, true), Ebb.Gelu.new(Ebb.GeluKind.TANH), Ebb.Dropout.new(0.1),
        new Scaled(new Ebb.Linear({in_features: 16, out_features: 4}), 2));
    if (wrap)
        check(wrap(model) !== false, 'wrapping fails');
    const optimizer = Ebb.AdamW.new(model, 0.01);
    const x = Ebb.randn([32, 8]), targets = Ebb.randint(0, 4, [32]);
    const losses = [];
    for (let step = 0; step < 8; step++) {
        losses.push(Ebb.tidy(() => {
            const loss = Ebb.cross_entropy(model.run(x), targets);
            loss.backward();
            optimizer.step();
            optimizer.zero_grad();
            return loss.item();
        }));
    }
    return losses;
}

// Operators, values, errors.
const x = Ebb.tensor([[1, 2, 3], [4, 5, 6]], Ebb.DType.F32);
equal(x.shape, [2, 3], 'shape');
equal([...x.add(1).mul(x).sub(x).div(2).toArray()], [0.5, 2, 4.5, 8, 12.5, 18], 'arithmetic');
equal(x.matmul(Ebb.transpose(x, 0, 1)).sum().item(), 14 + 32 + 32 + 77, 'matmul');
equal([...Ebb.tensor(new Int32Array([1, 2])).toArray()], [1, 2], 'typed array');
equal([...x.gt(3).toArray()], [0, 0, 0, 1, 1, 1], 'comparison');
checkFails(() => x.matmul(x), '[2, 3]');
checkFails(() => new Ebb.Linear({in_features: 0, out_features: 1}), 'in');

const w = Ebb.tensor([1, 2], Ebb.DType.F32);
w.set_requires_grad(true);
w.mul(w).sum().backward();
equal([...w.grad.toArray()], [2, 4], 'gradient');

// Integers are integers, so that a loss takes them.
for (const [data, dtype, wanted] of [[[1, 2], undefined, 'I64'], [[[1], [2.5]], undefined, 'F32'],
    [[], undefined, 'F32'], [3, undefined, 'I64'], [[1, 2], 'F32', 'F32'], [[1, 2], 'I32', 'I32'],
    [[0.5], 'BF16', 'BF16']]) {
    const made = Ebb.tensor(data, ...dtype ? [Ebb.DType[dtype]] : []);
    equal(made.dtype, Ebb.DType[wanted], `the dtype of ${JSON.stringify(data)}`);
}
equal(Ebb.cross_entropy(Ebb.zeros([2, 4]), Ebb.tensor([1, 3])).item().toFixed(4), '1.3863', 'targets');
checkFailsWith(TypeError, () => Ebb.tensor([1, 'a']), "'a' is no number");

// Changes in place give the tensor itself, and are counted.
{
    const a = Ebb.zeros([2, 2]), view = Ebb.select(a, 0, 0);
    for (const [change, expected] of [[t => t.add_(3), 3], [t => t.mul_(Ebb.full([2], 2)), 6], [t => t.sub_(2), 4],
        [t => t.div_(4), 1], [t => t.fill_(5), 5], [t => t.copy_(Ebb.ones([1])), 1], [t => t.zero_(), 0]]) {
        const version = a.get_version();
        check(change(view) === view, 'the tensor that was changed');
        equal([...a.toArray()], [expected, expected, 0, 0], `${change}`);
        equal(a.get_version(), version + 1, `the version after ${change}`);
    }
    check(Ebb.min(a.uniform_(2, 3)).item() >= 2, 'uniform_');
    check(Math.abs(Ebb.zeros([1000]).normal_(5).mean().item() - 5) < 0.3, 'normal_');
    const leaf = Ebb.ones([2]);
    leaf.set_requires_grad(true);
    leaf.mul(leaf).sum().backward();
    checkFails(() => leaf.sub_(leaf.grad), "can't be changed in place");
    Ebb.no_grad(() => leaf.sub_(leaf.grad.mul(0.25)));
    equal([...leaf.toArray()], [0.5, 0.5], 'a step by hand');
}

// Optimizers: of a module, an array of parameters or of groups, and no number that makes no sense.
{
    const linear = Ebb.Linear.new(2, 2, true), [weight, bias] = linear.get_parameters(true);
    check(Ebb.SGD === Ebb.Sgd && Ebb.ReLU === Ebb.Relu && Ebb.GELU === Ebb.Gelu && Ebb.SiLU === Ebb.Silu, 'names');
    for (const settings of [{module: linear}, {parameters: [weight, bias]}, {parameters: [{params: [weight, bias]}]}])
        equal(new Ebb.Adam({lr: 0.1, ...settings}).get_parameters().length, 2, 'parameters');
    const optimizer = new Ebb.SGD({parameters: [{params: [weight], lr: 0.5}, {params: [bias], weight_decay: 0.25}],
        lr: 2});
    equal([0, 1].map(i => [optimizer.get_group_lr(i), optimizer.get_group_weight_decay(i)]), [[0.5, 0], [2, 0.25]],
        'groups');
    for (const lr of [-1, NaN, Infinity]) {
        checkFails(() => new Ebb.AdamW({module: linear, lr}), 'AdamW: lr is', 'a number of 0 or more');
        checkFails(() => Ebb.SGD.new(linear, lr), 'Sgd: lr is', 'a number of 0 or more');
        checkFails(() => optimizer.set_option('lr', lr), 'Sgd: lr is');
        checkFailsWith(TypeError, () => new Ebb.SGD({parameters: [{params: [weight], lr}]}), 'lr of a group');
    }
    checkFails(() => new Ebb.AdamW({module: linear, beta1: 1}), 'beta1 is 1', 'less than 1');
    checkFails(() => new Ebb.AdamW({parameters: []}), 'the list of parameters is empty');
    checkFailsWith(TypeError, () => new Ebb.AdamW({parameters: [3]}), 'array of tensors');
    checkFailsWith(TypeError, () => new Ebb.AdamW({parameters: [{params: [weight], betas: 1}]}), 'has no betas');
    const wrapped = Ebb.checkpoint_wrapper(linear, true);
    check(Ebb.checkpoint_is_wrapped(linear) && wrapped !== null, 'offload_to_cpu by position');
    Ebb.checkpoint_unwrap(linear);
}

// Training: the loss falls, and wrapped runs equal the plain one.
const plain = train(null);
check(plain[7] < plain[0], `the loss does not fall: ${plain}`);
equal(train(model => Ebb.checkpoint_wrapper(model)), plain, 'wrapped');
equal(train(model => Ebb.checkpoint_wrap_each(model, Ebb.Linear.$gtype)), plain, 'each linear wrapped');
equal(train(model => {
    model.activation_checkpointing = true;
}), plain, 'wrapped by the property');

for (const policy of ['selective', 'attention', ['linear'], Ebb.save_nth_product(2),
    (op, ordinal) => ordinal % 2 ? Ebb.CheckpointPolicy.MUST_SAVE : Ebb.CheckpointPolicy.MUST_RECOMPUTE])
    equal(train(model => Ebb.checkpoint_wrapper(model, {policy})), plain, `policy ${policy}`);
equal(train(model => Ebb.checkpoint_wrap_uniform(model, 2)), plain, 'in chunks');
equal(train(model => Ebb.checkpoint_wrap_block(model, 2, {early_stop: false})), plain, 'the first layers wrapped');
checkFails(() => Ebb.checkpoint_wrap_uniform(Ebb.sequential(Ebb.Tanh.new()), 3), 'from 1 to 1');
checkFails(() => Ebb.checkpoint_wrapper(Ebb.Tanh.new(), {policy: ['linera']}), 'linera');
const unruly = Ebb.checkpoint_wrapper(Ebb.Linear.new(2, 2, true), {
    policy: () => {
        throw new Error('policy without a clue');
    },
});
checkFails(() => unruly.run(Ebb.ones([1, 2])), 'policy without a clue');
const list = Ebb.ModuleList.new();
list.append(Ebb.Tanh.new());
list.append(Ebb.Tanh.new());
equal(list.run(Ebb.zeros([1])).item(), 0, 'modules of a list in turn');

// Exceptions keep their message, from the first run and from the recompute.
const scaled = new Scaled(Ebb.Linear.new(2, 2, true), 1);
Ebb.checkpoint_wrapper(scaled);
const out = scaled.run(Ebb.ones([1, 2]));
scaled.failure = 'no luck today';
checkFails(() => out.sum().backward(), 'no luck today');
checkFails(() => scaled.run(Ebb.ones([1, 2])), 'no luck today');

// Memory: dispose, tidy, and what they leave alone.
const before = usedBytes();
const big = Ebb.ones([1024, 1024]);
check(usedBytes() - before >= 4 << 20, 'a tensor is not counted');
big.dispose();
equal(usedBytes(), before, 'bytes after dispose');
equal(big.shape, [0], 'a disposed tensor is empty');
for (let i = 0; i < 20; i++)
    Ebb.tidy(() => Ebb.ones([1024, 1024]).add(i).exp().mean().item());
equal(usedBytes(), before, 'bytes after tidy');
const kept = Ebb.tidy(() => {
    const inner = Ebb.tidy(() => [Ebb.ones([4]), Ebb.ones([256, 256])]);
    return {first: inner[0].add(1)};
});
equal([...kept.first.toArray()], [2, 2, 2, 2], 'what tidy returns');
const linear = Ebb.Linear.new(2, 2, true);
Ebb.tidy(() => linear.get_parameters(true));
equal(linear.get_parameter('weight').shape, [2, 2], 'parameters after tidy');
const held = Ebb.tidy(() => Ebb.keep(Ebb.ones([2])) && 0);
equal(held, 0, 'keep');

finish();
