"""Stores of activations from Python: made, looked at, given to modules and regions, written in Python."""
import gc

from gi.repository import GObject
from support import Ebb, TestCase, main

KEYS = {"store", "bytes_held", "bytes_peak", "bytes_put", "bytes_got", "bytes_spilled", "n_packed", "n_unpacked",
        "n_kept", "seconds_moving", "seconds_waited", "hidden_share"}


def mlp(device="cpu"):
    Ebb.manual_seed(1)
    module = Ebb.Sequential(Ebb.Linear(8, 16), Ebb.Tanh(), Ebb.Dropout(0.3), Ebb.Linear(16, 8))
    module.to(device)
    return module


def train(module, region=None, device="cpu"):
    """The gradients of a step."""
    module.zero_grad()
    Ebb.manual_seed(2)
    x = Ebb.randn(6, 8).to(device)
    if region is None:
        loss = module(x).square().sum()
    else:
        with region:
            loss = module(x).square().sum()
    loss.backward()
    return [parameter.grad.to("cpu").numpy().copy() for parameter in module.parameters()]


class StoreTestCase(TestCase):
    def assert_same(self, expected, grads):
        self.assertEqual(len(expected), len(grads))
        for a, b in zip(expected, grads):
            self.assertTrue((a == b).all())


class Making(StoreTestCase):
    def test_settings_are_arguments_and_attributes(self):
        disk = Ebb.DiskStore("/tmp", prefetch=3)
        store = Ebb.HostStore(byte_limit=1 << 30, when_full="spill", fallback=disk, least_size=1, in_flight=2)
        self.assertEqual((store.byte_limit, store.when_full, store.fallback), (1 << 30, Ebb.WhenFull.SPILL, disk))
        self.assertEqual((store.least_size, store.in_flight, store.prefetch, disk.prefetch), (1, 2, 1, 3))
        store.when_full, store.prefetch, store.fallback = "error", 0, None
        self.assertEqual((store.when_full, store.prefetch), (Ebb.WhenFull.ERROR, 0))
        self.assertIsNone(store.get_fallback())

    def test_a_kind_is_known_by_its_name(self):
        self.assertIn("contiguous+host", Ebb.store_kind_get_names())
        store = Ebb.make_store("contiguous+host", n_checkpoints=3, byte_limit=1 << 30, when_full="spill", prefetch=2)
        self.assertIsInstance(store, Ebb.ContiguousStore)
        self.assertEqual((store.n_checkpoints, store.prefetch), (3, 2))
        self.assertEqual((store.next.byte_limit, store.next.when_full), (1 << 30, Ebb.WhenFull.SPILL))
        for words, call in (("store kind hosts: it must be one of keep, host, disk", lambda: Ebb.make_store("hosts")),
                            ("store kind keep: it has no setting byte-limit",
                             lambda: Ebb.make_store("keep", byte_limit=1)),
                            ("byte-limit is -1: it must be a guint64", lambda: Ebb.make_store("host", byte_limit=-1))):
            self.assertRaisesRegex(Ebb.Error, words, call)

    def test_a_mistake_names_what_is_right(self):
        loop = Ebb.HostStore()
        for error, words, call in (
                (TypeError, r"no argument 'byte_limits': did you mean 'byte_limit'\? Its arguments are byte_limit",
                 lambda: Ebb.HostStore(byte_limits=1)),
                (ValueError, "byte_limit is -1: must be an int from 0", lambda: Ebb.HostStore(byte_limit=-1)),
                (TypeError, "byte_limit is '1G': must be an int", lambda: Ebb.HostStore(byte_limit="1G")),
                (TypeError, "prefetch is True: must be an int", lambda: Ebb.DiskStore("/tmp", prefetch=True)),
                (ValueError, "when_full is 'never': must be one of 'wait', 'spill', 'error'",
                 lambda: Ebb.HostStore(when_full="never")),
                (ValueError, "patience is -1: must be a number of at least 0", lambda: Ebb.HostStore(patience=-1)),
                (TypeError, r"fallback is '/tmp': must be an ebb.ActivationStore.*ebb.DiskStore\(",
                 lambda: Ebb.HostStore(fallback="/tmp")),
                (TypeError, "filter is 3: must be a function of", lambda: Ebb.KeepStore(filter=3)),
                (ValueError, "leads back to this store", lambda: setattr(loop, "fallback", loop)),
                (ValueError, "leads back to this store",
                 lambda: loop.set_fallback(Ebb.KeepStore(fallback=Ebb.HostStore(fallback=loop)))),
                (TypeError, "store is '/tmp': must be an ebb.SavedTensorHooks",
                 lambda: Ebb.offload_wrapper(Ebb.Tanh(), "/tmp")),
                (TypeError, "module is 3: it must be an ebb.Module", lambda: Ebb.offload_wrapper(3)),
                (TypeError, "must be a type of modules", lambda: Ebb.offload_wrap_each(Ebb.Tanh(), int)),
                (TypeError, "it must be a function, or a store alone", lambda: Ebb.saved_tensor_hooks("/tmp"))):
            with self.assertRaisesRegex(error, words):
                call()

    def test_counters_are_read_as_text_or_a_dict(self):
        store = Ebb.DiskStore("/tmp", least_size=1, fallback=Ebb.KeepStore())
        train(mlp(), store)
        store.synchronize()
        counters = store.report(as_dict=True)
        self.assertEqual(set(counters), KEYS | {"fallback"})
        self.assertEqual(set(counters["fallback"]), KEYS)
        self.assertEqual(counters["store"], "EbbDiskStore")
        self.assertGreater(counters["bytes_put"], 0)
        self.assertEqual(counters["bytes_put"], store.get_bytes_put())
        self.assertEqual(counters["hidden_share"], store.get_hidden_share())
        self.assertIn("EbbDiskStore: ", store.report())
        self.assertIn("  fallback EbbKeepStore: ", store.report())


class Using(StoreTestCase):
    def test_a_wrapped_module_gives_the_same_gradients(self):
        expected, store, module = train(mlp()), Ebb.DiskStore("/tmp", least_size=1), mlp()
        self.assertIs(Ebb.offload_wrapper(module, store), module)
        self.assert_same(expected, train(module))
        self.assertEqual(Ebb.offload_get_store(module), store)
        self.assertGreater(store.get_bytes_put(), 0)
        self.assertEqual(store.get_bytes_held(), 0)
        self.assertTrue(Ebb.offload_unwrap(module))

    def test_each_module_of_a_kind_is_wrapped(self):
        for which, n in ((Ebb.Linear, 2), ((Ebb.Linear, Ebb.Tanh), 3), (lambda m: isinstance(m, Ebb.Dropout), 1)):
            module = mlp()
            self.assertIs(Ebb.offload_wrap_each(module, which), module)
            stores = [Ebb.offload_get_store(m) for m in module.get_modules() if Ebb.offload_is_wrapped(m)]
            self.assertEqual(len(stores), n)
            self.assertTrue(all(store == stores[0] for store in stores))

    def test_a_region_stores_what_it_computes(self):
        expected = train(mlp())
        for region in (Ebb.saved_tensor_hooks(Ebb.DiskStore("/tmp", least_size=1)), Ebb.save_on_host(least_size=1)):
            self.assert_same(expected, train(mlp(), region))
            self.assertGreater(region.get_n_packed(), 0)
            self.assertEqual(region.get_bytes_held(), 0)

    def test_a_filter_says_what_is_stored(self):
        seen = []

        def pick(tensor, op):
            seen.append((op, tuple(tensor.shape)))
            return op != "tanh"

        store = Ebb.DiskStore("/tmp", least_size=1, filter=pick)
        self.assert_same(train(mlp()), train(mlp(), store))
        self.assertIn(("tanh", (6, 16)), seen)
        self.assertGreater(store.get_n_kept(), 0)
        n = len(seen)
        store.filter = None
        train(mlp(), store)
        self.assertEqual(len(seen), n)

    def test_an_exception_of_a_filter_comes_out(self):
        def pick(tensor, op):
            raise KeyError(op)

        store = Ebb.DiskStore("/tmp", least_size=1, filter=pick)
        with self.assertRaises(KeyError):
            train(mlp(), store)
        self.assertEqual(store.get_bytes_held(), 0)
        store.filter = None
        self.assert_same(train(mlp()), train(mlp(), store))

    def test_a_filter_does_not_keep_its_store_alive(self):
        store = Ebb.DiskStore("/tmp", filter=lambda tensor, op: True)
        gone = store.weak_ref()
        del store
        gc.collect()
        self.assertIsNone(gone())

    def test_to_the_host_and_back(self):
        expected = train(mlp("sim"), device="sim")
        store = Ebb.HostStore(least_size=1, prefetch=2)
        self.assert_same(expected, train(mlp("sim"), store, "sim"))
        store.synchronize()
        counters = store.report(as_dict=True)
        self.assertGreater(counters["bytes_got"], 0)
        self.assertEqual(counters["bytes_held"], 0)
        self.assertGreater(counters["seconds_moving"], 0)
        self.assertGreater(store.get_bytes_reserved(), 0)
        store.trim()
        self.assertEqual(store.get_bytes_reserved(), 0)

    def test_what_finds_no_room_goes_to_the_fallback(self):
        expected = train(mlp("sim"), device="sim")
        store = Ebb.HostStore(least_size=1, byte_limit=400, when_full="spill", fallback=Ebb.DiskStore("/tmp"))
        self.assert_same(expected, train(mlp("sim"), store, "sim"))
        self.assertGreater(store.get_bytes_spilled(), 0)
        store.fallback = None
        with self.assertRaisesRegex(Exception, "the host store is full: .* of 400 in use"):
            train(mlp("sim"), store, "sim")


class Shelf(Ebb.ActivationStore):
    """Keeps copies in a dict, and notes in which order they are asked for."""

    def __init__(self, **settings):
        super().__init__(least_size=1, **settings)
        self.copies, self.asked, self.failure = {}, [], None

    def do_put(self, block):
        number = len(self.copies)
        self.copies[number] = block.clone()
        return Ebb.Handle.new_for_object(Number(number))

    def do_get(self, handle):
        return self.copies[handle.get_object().value].clone()

    def do_prefetch(self, handle):
        self.asked.append(handle.get_object().value)
        if self.failure is not None:
            raise self.failure


class Number(GObject.Object):
    def __init__(self, value):
        super().__init__()
        self.value = value


class Written(StoreTestCase):
    def test_a_store_of_ones_own_is_asked_ahead(self):
        shelf = Shelf(prefetch=1)
        self.assert_same(train(mlp()), train(mlp(), shelf))
        self.assertGreater(len(shelf.asked), 0)
        self.assertEqual(shelf.get_bytes_held(), 0)
        shelf.count_seconds(2.0, 0.5)
        self.assertEqual(shelf.get_hidden_share(), 0.75)

    def test_an_exception_of_a_prefetch_comes_out_of_backward(self):
        shelf = Shelf(prefetch=1)
        shelf.failure = ZeroDivisionError("shelf")
        with self.assertRaises(ZeroDivisionError) as caught:
            train(mlp(), shelf)
        self.assertIs(caught.exception, shelf.failure)
        shelf.failure = None
        self.assert_same(train(mlp()), train(mlp(), shelf))

    def test_it_is_a_fallback_and_stands_before_others(self):
        shelf = Shelf()
        full = Ebb.HostStore(least_size=1, byte_limit=0, when_full="spill", fallback=shelf)
        self.assert_same(train(mlp("sim"), device="sim"), train(mlp("sim"), full, "sim"))
        self.assertGreater(shelf.get_bytes_put(), 0)
        block = Ebb.ones(10)
        handle = shelf.put_block(block)
        self.assertEqual(shelf.get_bytes_held(), 40)
        self.assertEqual(shelf.get_block(handle).tolist(), [1.0] * 10)
        del handle
        self.assertEqual(shelf.get_bytes_held(), 0)
        with self.assertRaisesRegex(Exception, "not returned by put_block"):
            shelf.get_block(Ebb.DiskStore("/tmp").put_block(block))
        with self.assertRaisesRegex(Exception, "one dimension"):
            shelf.put_block(Ebb.ones(2, 5))
        with self.assertRaisesRegex(Exception, "can't reserve a room"):
            shelf.reserve(block.device, 40)


if __name__ == "__main__":
    main()
