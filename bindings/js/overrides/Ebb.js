// Ebb for JavaScript: import Ebb from 'gi://Ebb?version=1.0'.
//
// Functions keep the names and the order of arguments of C; what C wants and JavaScript can leave out has defaults. The
// garbage collector sees a few bytes where a tensor holds megabytes: Ebb.tidy () and tensor.dispose () free it early.

const {Gio, GIRepository, GLib, GObject} = imports.gi;
const {addModels} = imports.overrides.EbbModels;

let scope = null; // tensors made inside the innermost Ebb.tidy (), or null

// libgomp's threads spin between parallel regions, by default for milliseconds, and take the core from other processes
// for that time. libgomp reads how long when it is loaded, which the first type of the library does. The variable is
// set for that moment alone, so that programs which are started from here don't inherit it.
function _load(Ebb) {
    const sets = ['OMP_WAIT_POLICY', 'GOMP_SPINCOUNT'].every(name => GLib.getenv(name) === null);
    if (sets)
        GLib.setenv('GOMP_SPINCOUNT', '1000', true);
    GObject.type_name(Ebb.Tensor.$gtype);
    if (sets)
        GLib.unsetenv('GOMP_SPINCOUNT');
}

function _init() {
    const Ebb = this;
    _load(Ebb);
    const F32 = Ebb.DType.F32;

    _track(Ebb);

    // -- constructors: what may fail happens in GInitable, which GJS does not call by itself

    const stores = new Set(Ebb.store_kind_get_names().map(kind => Ebb.store_kind_get_gtype(kind)));
    const storeClasses = [...stores].filter(type => GObject.type_is_a(type, Gio.Initable))
        .map(type => Ebb[GObject.type_name(type).replace('Ebb', '')]);
    for (const Class of [Ebb.Module, Ebb.TextDataset, Ebb.DocumentDataset, Ebb.MaskedDataset,
        Ebb.BpeTokenizer, Ebb.PartitionedStore, ...storeClasses]) {
        Class.prototype._init = function (...args) {
            GObject.Object.prototype._init.apply(this, args);
            this.init(null);
        };
    }

    // An optimizer takes {module} or {parameters: an array of tensors, or of groups as {params: [...], lr: 0.1}}.
    Ebb.Optimizer.prototype._init = function (settings = {}) {
        const {parameters, ...properties} = settings;
        const groups = _groups(Ebb, parameters);
        if (groups.length > 0)
            properties.parameters = _tensors(Ebb, groups[0].params);
        GObject.Object.prototype._init.call(this, properties);
        this.init(null);
        groups.forEach(({params, lr = -1, weight_decay: decay = -1}, i) => {
            if (i > 0)
                this.add_parameters(params, lr, decay);
            else if (lr >= 0)
                this.set_group_lr(0, lr);
            if (i === 0 && decay >= 0)
                this.set_group_weight_decay(0, decay);
        });
    };

    // -- names that PyTorch's users look for

    Object.assign(Ebb, {ReLU: Ebb.Relu, GELU: Ebb.Gelu, SiLU: Ebb.Silu, SGD: Ebb.Sgd});

    // -- functions with defaults

    const withDefaults = (name, ...defaults) => {
        const raw = Ebb[name];
        Ebb[name] = (...args) => {
            for (let i = args.length; i < defaults.length; i++)
                args.push(defaults[i]);
            return raw(...args);
        };
    };
    const none = undefined; // an argument that has no default
    withDefaults('zeros', none, F32, null);
    withDefaults('ones', none, F32, null);
    withDefaults('full', none, none, F32, null);
    withDefaults('scalar', none, F32, null);
    withDefaults('rand', none, F32, null, null);
    withDefaults('randn', none, F32, null, null);
    withDefaults('randint', none, none, none, Ebb.DType.I64, null, null);
    withDefaults('arange', none, none, 1, F32, null);
    withDefaults('multinomial', none, none, null);
    withDefaults('sum', none, null, false);
    withDefaults('mean', none, null, false);
    withDefaults('max', none, null, false);
    withDefaults('min', none, null, false);
    withDefaults('argmax', none, -1, false);
    withDefaults('softmax', none, -1);
    withDefaults('log_softmax', none, -1);
    withDefaults('gelu', none, Ebb.GeluKind.EXACT);
    withDefaults('gated_activation', none, none, Ebb.Activation.SILU);
    withDefaults('rotary', none, none, null, 0, 1, 1);
    withDefaults('dropout', none, 0.5, true, null);
    withDefaults('linear', none, none, null);
    withDefaults('cat', none, 0);
    withDefaults('stack', none, 0);
    withDefaults('layer_norm', none, null, null, 1e-5);
    withDefaults('rms_norm', none, null, 1e-6);
    withDefaults('unit_offset_rms_norm', none, null, 1e-6);
    withDefaults('attention', none, none, none, null, null, null, null);
    withDefaults('self_attention', none, none, null, false, 0, 0, null);
    withDefaults('self_attention_full', none, none, null, null, null, null);
    withDefaults('scaled_dot_product_attention', none, none, none, null, false, 0, 0, null);
    withDefaults('offload_wrapper', none, null);
    withDefaults('offload_wrap_each', none, none, null);
    withDefaults('tile_wrapper', none, 0);
    withDefaults('tile_wrap_each', none, none, 0);
    withDefaults('checkpoint_wrapper', none, null);
    withDefaults('checkpoint_wrap_each', none, none, null);
    withDefaults('checkpoint_wrap_uniform', none, none, null);
    withDefaults('checkpoint_wrap_block', none, none, null);
    withDefaults('checkpoint_sequential_full', none, none, none, null);

    // -- checkpoints

    // Options may be an object, as {policy: 'selective', early_stop: false}. A policy is 'selective', 'attention', an
    // array of op names, Ebb.save_nth_product (n), or a function of (op, ordinal, nBytes) that gives one of
    // Ebb.CheckpointPolicy. determinism_check may be 'none', 'default' or 'values'; on_recompute is a function of
    // (module, phase), where the phase is 'begin' or 'end'.
    for (const [name, index] of [['checkpoint_wrapper', 1], ['checkpoint_wrap_each', 2], ['checkpoint_wrap_if', 2],
        ['checkpoint_wrap_uniform', 2], ['checkpoint_wrap_block', 2], ['checkpoint_sequential_full', 3]]) {
        const raw = Ebb[name];
        Ebb[name] = (...args) => {
            if (name === 'checkpoint_wrapper' && typeof args[1] === 'boolean') // FairScale's, by position
                args.splice(1, 2, {offload_to_cpu: args[1]});
            if (_isPlainObject(args[index]))
                args[index] = _checkpointOptions(Ebb, name, args[index]);
            else if (args[index] === undefined)
                args[index] = null;
            else if (args[index] !== null && !(args[index] instanceof Ebb.CheckpointOptions))
                throw new TypeError(`${name}: options are ${args[index]}: must be an object, as {early_stop: false}`);
            return raw(...args);
        };
    }

    // DeepSpeed's: the configuration may be an object, JSON text or the path of a file; the arguments are an object, as
    // {checkpoint_in_cpu: true}.
    const configure = Ebb.checkpointing_configure;
    Ebb.checkpointing_configure = function (mpu = null, config = null, overrides = null) {
        const text = _isPlainObject(config) ? JSON.stringify(config) : config;
        return configure(mpu, text, _isPlainObject(overrides) ? _dictionary(Ebb, overrides) : overrides);
    };
    for (const name of ['checkpointing_get_config', 'checkpointing_get_profile']) {
        const raw = Ebb[name];
        Ebb[name] = () => _values(Ebb, raw());
    }
    // Calls fn with tensors; what it computes of them is computed again in backward. It gives a tensor or an array.
    const checkpoint = Ebb.checkpointing_checkpoint;
    Ebb.checkpointing_checkpoint = function (fn, ...tensors) {
        return _values(Ebb, checkpoint(args => {
            const values = _values(Ebb, args);
            return _tensors(Ebb, fn(...Array.isArray(values) ? values : [values]));
        }, _tensors(Ebb, tensors)));
    };
    Ebb.save_nth_product = function (n) {
        return {nthProduct: n};
    };

    // -- LoRA

    // Adds an adapter to a model. Options may be an object, as {rank: 8, targets: ['q_proj', 'v_proj']}.
    Ebb.lora = (model, options = null) => Ebb.lora_wrap(model,
        _isPlainObject(options) ? new Ebb.LoraOptions(options) : options);
    withDefaults('lora_load', none, none, 'default');
    withDefaults('lora_save', none, none, null);

    // -- many ranks

    // Options may be an object, as {flatten: true, reshard_after_forward: false, compute_dtype: Ebb.DType.BF16};
    // without a group it is the default one, that of Ebb.init_process_group ().
    const reshard = {auto: Ebb.Reshard.AUTO, always: Ebb.Reshard.ALWAYS, never: Ebb.Reshard.NEVER,
        true: Ebb.Reshard.ALWAYS, false: Ebb.Reshard.NEVER};
    const shardOptions = (caller, given) => {
        const options = Ebb.FullyShardOptions.new();
        for (const [name, value] of Object.entries(given)) {
            if (!(name in options) && typeof options[`set_${name}`] !== 'function')
                throw new TypeError(`${caller} has no option ${name}`);
            if (name === 'reshard_after_forward' && !Object.hasOwn(reshard, value))
                throw new TypeError(`${name}: ${_show(value)}: must be 'auto', 'always', 'never', true or false`);
            if (name in options)
                options[name] = name === 'reshard_after_forward' ? reshard[value] : value;
            else
                options[`set_${name}`](value);
        }
        return options;
    };
    const replicateOptions = (caller, given) => {
        const {unused_parameters: unused = 'error', ...others} = given;
        if (unused !== 'error' && unused !== 'zero')
            throw new TypeError(`unused_parameters: ${_show(unused)}: must be 'error' or 'zero'`);
        return new Ebb.ReplicateOptions({unused_parameters: unused === 'zero' ? Ebb.UnusedParameters.ZERO
            : Ebb.UnusedParameters.ERROR, ...others});
    };
    for (const [name, index, make] of [['fully_shard', 1, shardOptions], ['fully_shard_wrap_each', 2, shardOptions],
        ['fully_shard_auto_wrap', 2, shardOptions], ['replicate', 1, replicateOptions]]) {
        const raw = Ebb[name];
        Ebb[name] = (...args) => {
            while (args.length < index + 2)
                args.push(null);
            if (_isPlainObject(args[index + 1]))
                args[index + 1] = make(name, args[index + 1]);
            return raw(...args);
        };
    }
    // Options may be an object, as {sequence_parallel: true, plan: {'h.*.mlp.c_fc': 'column'}}.
    const toPlan = given => {
        if (!_isPlainObject(given))
            return given;
        const plan = Ebb.ParallelPlan.new();
        const styles = Object.keys(Ebb.ParallelStyle).filter(name => name === name.toUpperCase() && name !== '$GTYPE');
        for (const [pattern, style] of Object.entries(given)) {
            const value = typeof style === 'string' ? Ebb.ParallelStyle[style.toUpperCase().replaceAll('-', '_')]
                : style;
            if (!styles.some(name => Ebb.ParallelStyle[name] === value)) {
                const known = styles.map(name => _show(name.toLowerCase())).join(', ');
                throw new TypeError(`parallelize: the plan's style for ${_show(pattern)} is ${_show(style)}, ` +
                    `which is no Ebb.ParallelStyle: it must be one of ${known}`);
            }
            plan.add(pattern, value);
        }
        return plan;
    };
    const parallelize = Ebb.parallelize;
    Ebb.parallelize = function (module, group = null, options = null) {
        if (!_isPlainObject(options))
            return parallelize(module, group, options);
        const {plan = null, ...others} = options;
        for (const [name, value] of Object.entries(others)) {
            if (typeof value !== 'boolean')
                throw new TypeError(`parallelize: ${name} is ${_show(value)}: it must be true or false`);
        }
        return parallelize(module, group, new Ebb.ParallelOptions({...others, plan: toPlan(plan)}));
    };
    // OSLO's and Megatron's: the configuration may be an object, JSON text or the path of a file.
    const initialize = Ebb.initialize;
    Ebb.initialize = (model, config) => initialize(model, _isPlainObject(config) ? JSON.stringify(config) : config);
    const recomputeConfigure = Ebb.recompute_configure;
    Ebb.recompute_configure = (model, config, mpu = null) =>
        recomputeConfigure(model, _isPlainObject(config) ? JSON.stringify(config) : config, mpu);
    withDefaults('model_parallel_manual_seed', none, null);
    for (const [name, ...defaults] of [['parallel_copy'], ['parallel_reduce'], ['parallel_scatter', 0],
        ['parallel_gather', 0, false], ['parallel_reduce_scatter', 0]]) {
        const raw = Ebb[name];
        Ebb[name] = (x, ...args) => {
            args.push(...defaults.slice(args.length));
            return raw(x, ...args.slice(0, defaults.length), args[defaults.length] ?? Ebb.ProcessGroup.get_default());
        };
    }
    // Calls fn (generator) with a named generator of the tracker as the thread's.
    Ebb.GeneratorTracker.prototype.with_fork = function (name, fn) {
        this.fork(name);
        try {
            return fn(this.get_generator(name));
        } finally {
            this.join();
        }
    };
    Ebb.run_ranks = function () {
        throw new Error('run_ranks: JavaScript runs on one thread alone, so its ranks are processes: start them with ' +
            "mpirun -n 4 gjs -m program.js and call Ebb.init_process_group ('auto')");
    };
    // Calls fn (); its backward passes add up this rank's gradients, and the next one outside, or a step, reduces them.
    Ebb.no_sync = function (fn) {
        Ebb.push_gradient_sync(false);
        try {
            return fn();
        } finally {
            Ebb.pop_gradient_sync();
        }
    };
    // Calls fn with the full parameters of a sharded module summoned; with writeback its changes to them are kept.
    Ebb.with_full_params = function (module, fn, writeback = true) {
        Ebb.summon_full_params(module);
        try {
            return fn(module);
        } finally {
            Ebb.release_full_params(module, writeback);
        }
    };

    addModels(Ebb);

    // -- plans for a budget

    const toStep = (caller, step) => {
        if (typeof step !== 'function')
            throw new TypeError(`${caller}: step is ${_show(step)}: it must be a function of one training step`);
        return () => {
            step();
            return true;
        };
    };
    // The fastest plan with which a training step keeps a budget of bytes, or of a text as '1.5GiB'. step () is a step
    // as the program runs it, with the optimizer's; here it runs dry, several times. Ranks that train together all call
    // this, with their group. plan.apply () makes the model follow it. measured: the step runs for real and may read
    // values: some tens of steps, which train. store: an Ebb.DiskStore or Ebb.HostStore to which blocks may move what
    // they keep; not if measured.
    Ebb.plan_memory = function (model, step, budget, device = null, group = null, measured = false, store = null) {
        if (typeof budget !== 'string' && !(Number.isSafeInteger(budget) && budget >= 0)) {
            throw new TypeError(`plan_memory: budget is ${_show(budget)}: ` +
                "it must be a number of bytes, or a text as '1.5GiB'");
        }
        const where = typeof device === 'string' ? Ebb.Device.get(device) : device ?? Ebb.get_default_device();
        const bytes = typeof budget === 'string' ? Ebb.memory_parse_size(budget)[1] : budget;
        const run = toStep('plan_memory', step);
        if (measured && group !== null)
            throw new TypeError('plan_memory: measured and a group: ranks plan by dry steps alone');
        if (measured && store !== null)
            throw new TypeError("plan_memory: measured and a store: what a real step waits for copies isn't known");
        if (group !== null)
            return Ebb.MemoryPlan.new_on_ranks(model, where, store, group, run, bytes);
        return measured ? Ebb.MemoryPlan.new_measured(model, where, run, bytes)
            : Ebb.MemoryPlan.new(model, where, store, run, bytes);
    };
    const {run_step: runStep, check_step: checkStep} = Ebb.MemoryPlan.prototype;
    Ebb.MemoryPlan.prototype.run_step = function (training, step) {
        runStep.call(this, training, toStep('run_step', step));
    };
    Ebb.MemoryPlan.prototype.check_step = function (step) {
        checkStep.call(this, toStep('check_step', step));
    };

    // -- stores of activations

    // As new Ebb.HostStore ({byte_limit: 2e9, when_full: 'spill', fallback: new Ebb.DiskStore ({folder: '/tmp'})}).
    const whenFull = {wait: Ebb.WhenFull.WAIT, spill: Ebb.WhenFull.SPILL, error: Ebb.WhenFull.ERROR};
    Ebb.HostStore.prototype._init = function (settings = {}) {
        const {when_full: policy = Ebb.WhenFull.WAIT, ...others} = settings;
        if (typeof policy === 'string' && !Object.hasOwn(whenFull, policy))
            throw new TypeError(`when_full: ${_show(policy)}: must be 'wait', 'spill' or 'error'`);
        GObject.Object.prototype._init.call(this, {when_full: whenFull[policy] ?? policy, ...others});
    };
    // A store of one of the kinds that Ebb.store_kind_get_names () lists: Ebb.make_store ('contiguous', {grow: true}).
    Ebb.make_store = function (kind, settings = {}) {
        return Ebb.store_kind_make(kind, Object.keys(settings).map(name => name.replaceAll('_', '-')),
            Object.values(settings));
    };
    // Has fn (tensor, op) asked about each tensor that would be stored; null: all are.
    const setFilter = Ebb.ActivationStore.prototype.set_filter;
    Ebb.ActivationStore.prototype.set_filter = function (fn) {
        if (fn !== null && typeof fn !== 'function')
            throw new TypeError(`set_filter: ${_show(fn)}: must be a function of (tensor, op), or null`);
        setFilter.call(this, fn === null ? null : (tensor, op) => Boolean(fn(tensor, op)));
    };
    const setFallback = Ebb.ActivationStore.prototype.set_fallback;
    Ebb.ActivationStore.prototype.set_fallback = function (fallback) {
        for (let store = fallback; store !== null; store = store.get_fallback()) {
            if (store === this)
                throw new TypeError('set_fallback: that store leads back to this one');
        }
        setFallback.call(this, fallback);
    };
    // The counters, and those of the stores behind, as an object.
    Ebb.ActivationStore.prototype.counters = function () {
        return JSON.parse(this.report_json());
    };
    // Calls fn (store) and has all that backward needs of what it computes go to the store.
    Ebb.with_store = function (store, fn) {
        if (!(store instanceof Ebb.SavedTensorHooks))
            throw new TypeError(`with_store: ${_show(store)}: must be an Ebb.SavedTensorHooks, as an Ebb.HostStore`);
        Ebb.push_saved_tensor_hooks(store);
        try {
            return fn(store);
        } finally {
            Ebb.pop_saved_tensor_hooks();
        }
    };
    // The same with a host store made for it; settings are its properties.
    Ebb.save_on_host = function (settings, fn) {
        return Ebb.with_store(new Ebb.HostStore({in_flight: 4, prefetch: 4, ...settings}), fn);
    };

    // -- making and reading tensors

    const typedArrays = new Map([
        [Float32Array, F32], [Int32Array, Ebb.DType.I32], [BigInt64Array, Ebb.DType.I64], [Uint8Array, Ebb.DType.U8],
    ]);

    // A device may be given by its name.
    const setDefaultDevice = Ebb.set_default_device;
    Ebb.set_default_device = device =>
        setDefaultDevice(typeof device === 'string' ? Ebb.Device.get(device) : device ?? null);

    // Numbers, nested arrays of them, or a typed array, copied. Without a dtype integers become i64, so that a loss
    // takes them as targets, and numbers of which one has a fraction become f32; 1.0 is an integer in JavaScript.
    Ebb.tensor = function (data, dtype = null) {
        for (const [Type, ofType] of typedArrays) {
            if (data instanceof Type) {
                const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
                const tensor = Ebb.Tensor.new_from_bytes(bytes.slice(), 0, [data.length], ofType);
                return Ebb.to_device(tensor, Ebb.get_default_device());
            }
        }
        const shape = [];
        for (let level = data; Array.isArray(level); level = level[0])
            shape.push(level.length);
        const flat = Array.isArray(data) ? data.flat(Infinity) : [data];
        const wrong = flat.find(value => typeof value !== 'number');
        if (wrong !== undefined)
            throw new TypeError(`tensor: ${_show(wrong)} is no number`);
        const isInteger = flat.length > 0 && flat.every(value => Number.isSafeInteger(value));
        dtype ??= isInteger ? Ebb.DType.I64 : F32;
        const tensor = isInteger && !Ebb.dtype_is_floating_point(dtype) ? Ebb.Tensor.new_from_ints(flat, shape)
            : Ebb.Tensor.new_from_floats(flat, shape);
        return tensor.get_dtype() === dtype ? tensor : Ebb.cast(tensor, dtype);
    };

    const proto = Ebb.Tensor.prototype;
    const getter = (name, get) => Object.defineProperty(proto, name, {get, configurable: true});

    getter('shape', function () {
        return this.get_shape();
    });
    getter('dtype', function () {
        return this.get_dtype();
    });
    getter('grad', function () {
        return this.get_grad();
    });
    proto.item = function () {
        return this.get_item()[1];
    };
    // The values in row-major order, as a typed array of their own.
    proto.toArray = function () {
        const floating = Ebb.dtype_is_floating_point(this.get_dtype());
        const tensor = floating ? Ebb.cast(this.detach(), F32) : this;
        const bytes = tensor.get_bytes().toArray().slice();
        for (const [Type, ofType] of typedArrays) {
            if (ofType === tensor.get_dtype())
                return new Type(bytes.buffer);
        }
        return bytes; // of booleans
    };
    proto.toString = function () {
        return this.to_string();
    };

    // -- operators: methods that take a tensor or a number

    for (const name of ['add', 'sub', 'mul', 'div', 'pow', 'eq', 'ne', 'lt', 'le', 'gt', 'ge']) {
        proto[name] = function (other) {
            return typeof other === 'number' ? Ebb[`${name}_scalar`](this, other) : Ebb[name](this, other);
        };
    }
    for (const name of ['matmul', 'neg', 'abs', 'exp', 'log', 'sqrt', 'square', 'tanh', 'relu', 'silu', 'sigmoid',
        'gelu', 'soft_cap', 'sum', 'mean', 'softmax', 'log_softmax', 'reshape', 'permute', 'transpose', 'unsqueeze',
        'squeeze', 'narrow', 'select', 'contiguous', 'cast', 'argmax', 'norm']) {
        proto[name] = function (...args) {
            return Ebb[name](this, ...args);
        };
    }

    // Changes in place, which give the tensor itself: Ebb.no_grad(() => w.sub_(w.grad.mul(0.1))).
    for (const name of ['add', 'sub', 'mul', 'div']) {
        proto[`${name}_`] = function (other) {
            if (typeof other === 'number')
                this[`${name}_scalar_in_place`](other);
            else
                this[`${name}_in_place`](other);
            return this;
        };
    }
    for (const [name, call, ...defaults] of [['fill_', 'fill'], ['copy_', 'copy_from'],
        ['normal_', 'fill_normal', 0, 1, null], ['uniform_', 'fill_uniform', 0, 1, null]]) {
        proto[name] = function (...args) {
            this[call](...args, ...defaults.slice(args.length));
            return this;
        };
    }
    proto.zero_ = function () {
        return this.fill_(0);
    };
    // Calls fn () without recording gradients, so that parameters can be changed in place.
    Ebb.no_grad = function (fn) {
        Ebb.push_grad_enabled(false);
        try {
            return fn();
        } finally {
            Ebb.pop_grad_enabled();
        }
    };

    // -- modules

    // Calls a module with any number of tensors; a result of several values is an array.
    Ebb.Module.prototype.run = function (...tensors) {
        if (tensors.length === 1)
            return this.call1(tensors[0]);
        const args = Ebb.Args.new(Ebb.ArgsKind.TUPLE);
        for (const tensor of tensors)
            args.add_tensor(null, tensor);
        return _values(Ebb, this.call(args));
    };
    // The modules of a list one after the other: the first tensor goes through them, the others are for each.
    Ebb.ModuleList.prototype.run = function (...tensors) {
        const args = Ebb.Args.new(Ebb.ArgsKind.TUPLE);
        for (const tensor of tensors)
            args.add_tensor(null, tensor);
        return _values(Ebb, this.call_in_turn(args));
    };
    Ebb.sequential = function (...modules) {
        const sequential = Ebb.Sequential.new();
        for (const module of modules)
            sequential.append(module);
        return sequential;
    };

    // -- memory

    // Calls fn and lets go of every tensor made meanwhile but those that it returns (alone, in an array or an object).
    Ebb.tidy = function (fn) {
        const outer = scope;
        const mine = new Set();
        let result;
        scope = mine;
        try {
            result = fn();
        } finally {
            scope = outer;
            _visit(Ebb, result, tensor => {
                mine.delete(tensor);
                outer?.add(tensor);
            });
            for (const tensor of mine)
                tensor.dispose();
        }
        return result;
    };
    // Takes a tensor out of the running Ebb.tidy ().
    Ebb.keep = function (tensor) {
        scope?.delete(tensor);
        return tensor;
    };
}

const switches = ['offload_to_cpu', 'preserve_rng_state', 'early_stop', 'retain_recomputed', 'synchronize', 'profile'];
const optionNames = [...switches, 'determinism_check', 'policy', 'store', 'on_recompute', 'options'];

// An option that is undefined is as if it were left out.
function _checkpointOptions(Ebb, caller, given) {
    for (const name of Object.keys(given)) {
        if (!optionNames.includes(name))
            throw new TypeError(`${caller} has no option ${name}: its options are ${optionNames.join(', ')}`);
    }
    if ((given.options ?? null) !== null)
        return _takeOptions(Ebb, given);
    const options = Ebb.CheckpointOptions.new();
    for (const name of switches.filter(each => given[each] !== undefined)) {
        if (typeof given[name] !== 'boolean')
            throw new TypeError(`${name}: ${_show(given[name])}: must be true or false`);
        options[name] = given[name];
    }
    if (given.determinism_check !== undefined)
        options.determinism_check = _determinismCheck(Ebb, given.determinism_check);
    _setPolicy(options, given.policy ?? null);
    if ((given.store ?? null) !== null)
        _setStore(Ebb, options, given.store, given.offload_to_cpu);
    if ((given.on_recompute ?? null) !== null)
        _setRecomputeFunction(Ebb, options, given.on_recompute);
    return options;
}

// All at once, as Ebb.checkpointing_get_options () gives them.
function _takeOptions(Ebb, given) {
    const {options, ...rest} = given;
    if (!(options instanceof Ebb.CheckpointOptions)) {
        throw new TypeError(`options: ${_show(options)}: must be an Ebb.CheckpointOptions, as `
            + 'Ebb.checkpointing_get_options () gives them');
    }
    const other = Object.keys(rest).find(name => rest[name] !== undefined);
    if (other !== undefined)
        throw new TypeError(`options and ${other}: options are all there is, leave one of both out`);
    return options;
}

function _show(value) {
    return typeof value === 'string' ? `'${value}'` : `${value}`;
}

function _determinismCheck(Ebb, value) {
    const {NONE, DEFAULT, VALUES} = Ebb.DeterminismCheck;
    const names = new Map([['none', NONE], ['default', DEFAULT], ['values', VALUES], [null, NONE]]);
    if (names.has(value))
        return names.get(value);
    if ([NONE, DEFAULT, VALUES].includes(value))
        return value;
    throw new TypeError(`determinism_check: ${_show(value)}: must be 'none', 'default' or 'values'`);
}

function _setStore(Ebb, options, store, offload) {
    if (!(store instanceof Ebb.SavedTensorHooks)) {
        throw new TypeError(`store: ${_show(store)}: must be an Ebb.SavedTensorHooks, as are Ebb.HostStore.new (), `
            + 'Ebb.DiskStore.new (\'/tmp\') and objects of your own class');
    }
    if (offload)
        throw new TypeError('store and offload_to_cpu: the inputs can go to one place only, leave one of both out');
    options.set_store(store);
}

function _setRecomputeFunction(Ebb, options, announce) {
    if (typeof announce !== 'function')
        throw new TypeError(`on_recompute: ${_show(announce)}: must be a function of (module, phase)`);
    options.set_recompute_func((module, phase) => {
        announce(module, phase === Ebb.RecomputePhase.BEGIN ? 'begin' : 'end');
        return true;
    });
}

function _setPolicy(options, policy) {
    if (policy === 'selective')
        options.set_policy_selective();
    else if (policy === 'attention' || policy === 'core_attn')
        options.set_policy_core_attention();
    else if (Array.isArray(policy))
        options.set_policy_save_ops(policy);
    else if (typeof policy === 'function')
        options.set_policy((op, ordinal, nBytes) => _verdict(op, policy(op, ordinal, nBytes)));
    else if (policy?.nthProduct !== undefined)
        options.set_policy_save_nth_product(policy.nthProduct);
    else if (policy !== null)
        throw new TypeError(`policy: ${_show(policy)}: must be 'selective', 'attention', an array, a function or `
            + 'save_nth_product (n)');
}

function _verdict(op, verdict) {
    if (Number.isInteger(verdict))
        return verdict;
    throw new TypeError(`policy: ${verdict} for ${op}: must be an Ebb.CheckpointPolicy: MUST_SAVE, PREFER_SAVE, `
        + 'PREFER_RECOMPUTE or MUST_RECOMPUTE');
}

// What an optimizer moves: groups, of which one without rates stands for a plain array.
function _groups(Ebb, parameters) {
    if (parameters === undefined || parameters instanceof Ebb.Args)
        return [];
    if (!Array.isArray(parameters))
        throw new TypeError(`parameters: ${_show(parameters)}: must be an array of tensors or of groups`);
    const groups = parameters.length > 0 && parameters.every(_isPlainObject) ? parameters : [{params: parameters}];
    for (const {params, ...rates} of groups) {
        if (!Array.isArray(params) || !params.every(value => value instanceof Ebb.Tensor))
            throw new TypeError(`params: ${_show(params)}: must be an array of tensors`);
        for (const [name, value] of Object.entries(rates)) {
            if (!['lr', 'weight_decay'].includes(name))
                throw new TypeError(`a group has no ${name}: it has params, lr and weight_decay`);
            if (!(value >= 0 && value < Infinity))
                throw new TypeError(`${name} of a group: ${_show(value)}: must be a number of 0 or more`);
        }
    }
    return groups;
}

function _isPlainObject(value) {
    return value !== null && typeof value === 'object' && Object.getPrototypeOf(value) === Object.prototype;
}

function _visit(Ebb, value, see, depth = 0) {
    if (value instanceof Ebb.Tensor)
        see(value);
    else if (Array.isArray(value))
        value.forEach(item => _visit(Ebb, item, see, depth + 1));
    else if (_isPlainObject(value) && depth < 8)
        Object.values(value).forEach(item => _visit(Ebb, item, see, depth + 1));
}

// A tensor, or an array of them, for C.
function _tensors(Ebb, value) {
    if (value instanceof Ebb.Tensor)
        return Ebb.Args.new_for_tensor(value);
    const args = Ebb.Args.new(Ebb.ArgsKind.TUPLE);
    for (const tensor of value)
        args.add_tensor(null, tensor);
    return args;
}

// An object of truth values, numbers and strings, for C.
function _dictionary(Ebb, object) {
    const args = Ebb.Args.new(Ebb.ArgsKind.DICT);
    for (const [key, value] of Object.entries(object)) {
        if (value === null || value === undefined)
            args.add_none(key);
        else if (typeof value === 'boolean')
            args.add_boolean(key, value);
        else if (Number.isSafeInteger(value))
            args.add_int(key, value);
        else if (typeof value === 'number')
            args.add_double(key, value);
        else
            args.add_string(key, `${value}`);
    }
    return args;
}

function _values(Ebb, args) {
    const get = index => {
        switch (args.get_value_kind(index)) {
        case Ebb.ValueKind.BOOL: return args.get_boolean(index);
        case Ebb.ValueKind.INT: return args.get_int(index);
        case Ebb.ValueKind.DOUBLE: return args.get_double(index);
        case Ebb.ValueKind.STRING: return args.get_string(index);
        case Ebb.ValueKind.TENSOR: return args.get_tensor(index);
        case Ebb.ValueKind.ARGS: return _values(Ebb, args.get_args(index));
        case Ebb.ValueKind.OBJECT: return args.get_object(index);
        default: return null;
        }
    };
    const indices = [...Array(args.get_length()).keys()];
    if (args.get_kind() === Ebb.ArgsKind.BARE)
        return indices.length ? get(0) : null;
    if (args.get_kind() === Ebb.ArgsKind.DICT)
        return Object.fromEntries(indices.map(index => [args.get_key(index), get(index)]));
    return indices.map(get);
}

// Every function and method of the library tells the running Ebb.tidy () which tensors it has made.
function _track(Ebb) {
    const wrap = (holder, name) => {
        const raw = holder[name];
        if (typeof raw !== 'function')
            return;
        holder[name] = function (...args) {
            const result = raw.apply(this, args);
            if (scope !== null)
                _visit(Ebb, result, tensor => scope.add(tensor));
            return result;
        };
    };
    const wrapMethods = (info, kind) => {
        const Class = Ebb[info.get_name()];
        for (let i = 0; i < GIRepository[`${kind}_info_get_n_methods`](info); i++) {
            const method = GIRepository[`${kind}_info_get_method`](info, i);
            const isMethod = GIRepository.function_info_get_flags(method) & GIRepository.FunctionInfoFlags.IS_METHOD;
            if (_givesTensors(method))
                wrap(isMethod ? Class.prototype : Class, method.get_name());
        }
    };
    const repository = GIRepository.Repository.get_default();
    for (let i = 0; i < repository.get_n_infos('Ebb'); i++) {
        const info = repository.get_info('Ebb', i);
        switch (info.get_type()) {
        case GIRepository.InfoType.FUNCTION:
            if (_givesTensors(info))
                wrap(Ebb, info.get_name());
            break;
        case GIRepository.InfoType.OBJECT:
            wrapMethods(info, 'object');
            break;
        case GIRepository.InfoType.STRUCT:
        case GIRepository.InfoType.BOXED:
            wrapMethods(info, 'struct');
            break;
        }
    }
}

function _givesTensors(info) {
    const isTensor = type => {
        switch (GIRepository.type_info_get_tag(type)) {
        case GIRepository.TypeTag.ARRAY:
            return isTensor(GIRepository.type_info_get_param_type(type, 0));
        case GIRepository.TypeTag.INTERFACE:
            return GIRepository.type_info_get_interface(type).get_name() === 'Tensor';
        default:
            return false;
        }
    };
    if (isTensor(GIRepository.callable_info_get_return_type(info)))
        return true;
    for (let i = 0; i < GIRepository.callable_info_get_n_args(info); i++) {
        const argument = GIRepository.callable_info_get_arg(info, i);
        if (GIRepository.arg_info_get_direction(argument) === GIRepository.Direction.OUT &&
            isTensor(GIRepository.arg_info_get_type(argument)))
            return true;
    }
    return false;
}
