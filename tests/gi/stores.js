// Stores of activations from JavaScript: made, looked at, given to modules and regions.
import Ebb from 'gi://Ebb?version=1.0';

import {check, checkFails, finish} from './support/check.js';

function mlp() {
    Ebb.manual_seed(1);
    return Ebb.sequential(Ebb.Linear.new(8, 16, true), Ebb.Tanh.new(), Ebb.Linear.new(16, 8, true));
}

function train(module, run = fn => fn()) {
    module.zero_grad();
    Ebb.manual_seed(2);
    const x = Ebb.randn([6, 8]);
    run(() => module.run(x).square().sum()).backward();
    return module.get_parameters(true).map(parameter => parameter.grad.toArray().join());
}

const expected = train(mlp()).join(';');
const same = (grads, what) => check(grads.join(';') === expected, `${what}: the gradients differ`);

// -- made of properties

{
    const disk = new Ebb.DiskStore({folder: '/tmp', least_size: 1});
    const store = new Ebb.HostStore({byte_limit: 1e9, when_full: 'spill', fallback: disk, prefetch: 2});
    check(store.byte_limit === 1e9 && store.when_full === Ebb.WhenFull.SPILL, 'settings are properties');
    check(store.fallback === disk && store.prefetch === 2, 'settings are properties');
    const names = Ebb.store_kind_get_names();
    check(names.includes('keep') && names.includes('contiguous+disk'), `the kinds of stores are ${names}`);
    const front = Ebb.make_store('contiguous+disk', {n_checkpoints: 3, folder: '/tmp'});
    check(front instanceof Ebb.ContiguousStore && front.n_checkpoints === 3, 'a store by its name');
    check(front.get_next() instanceof Ebb.DiskStore && front.get_next().folder === '/tmp', 'the store behind it');
    checkFails(() => Ebb.make_store('hosts'), 'store kind hosts', 'one of keep, host');
    checkFails(() => new Ebb.ContiguousStore({n_checkpoints: 0}), 'n-checkpoints is 0');
    check(new Ebb.HostStore().when_full === Ebb.WhenFull.WAIT, 'a store without settings');
    checkFails(() => new Ebb.HostStore({when_full: 'never'}), 'when_full', "'never'", "'wait', 'spill' or 'error'");
    checkFails(() => store.set_filter(3), 'set_filter', 'function of (tensor, op)');
    checkFails(() => disk.set_fallback(store), 'leads back');
    checkFails(() => new Ebb.DiskStore({folder: '/nowhere'}), '/nowhere');
    checkFails(() => Ebb.with_store('/tmp', () => null), 'with_store', "'/tmp'", 'Ebb.SavedTensorHooks');
}

// -- modules and regions

{
    const store = Ebb.DiskStore.new('/tmp');
    const module = mlp();
    store.least_size = 1;
    check(Ebb.offload_wrapper(module, store) === module, 'the wrapper returns the module');
    same(train(module), 'a wrapped module');
    check(store.get_bytes_put() > 0 && store.get_bytes_held() === 0, 'nothing is left');
    check(Ebb.offload_get_store(module) === store, 'its store');
    store.synchronize();
    const counters = store.counters();
    check(counters.store === 'EbbDiskStore' && counters.bytes_put === store.get_bytes_put(), 'counters');
    check(store.report().includes('EbbDiskStore: '), 'report');
    Ebb.offload_wrapper(mlp());
}
{
    const store = new Ebb.DiskStore({folder: '/tmp', least_size: 1});
    const ops = new Set();
    store.set_filter((tensor, op) => {
        ops.add(op);
        return tensor.get_shape()[1] === 16;
    });
    same(train(mlp(), fn => Ebb.with_store(store, fn)), 'a region');
    check(ops.has('tanh') && store.get_n_kept() > 0, 'a filter is asked');
    store.set_filter(() => {
        throw new Error('no luck');
    });
    checkFails(() => train(mlp(), fn => Ebb.with_store(store, fn)), 'no luck');
    store.set_filter(null);
    let inner = null;
    same(train(mlp(), fn => Ebb.save_on_host({prefetch: 2, least_size: 1}, host => {
        inner = host;
        return fn();
    })), 'on the host');
    check(inner.prefetch === 2 && inner.in_flight === 4 && inner.get_n_packed() > 0, 'the store of a region');
    same(train(mlp()), 'the door is as it was');
}

finish();
