"""The whole state of sharded modules, and folders of it, from Python."""
import os
import tempfile

from support import Ebb, TestCase, main


def model():
    Ebb.manual_seed(3)
    return Ebb.Sequential(Ebb.Linear(8, 16), Ebb.BatchNorm1d(16), Ebb.Linear(16, 4))


def train(module, optimizer, steps):
    for step in range(steps):
        Ebb.manual_seed(100 + step)
        loss = Ebb.cross_entropy(module(Ebb.randn(12, 8)), Ebb.randint(0, 4, 12))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def shard(module):
    return Ebb.fully_shard(module, Ebb.ProcessGroup.get_default(), flatten=True)


class ShardState(TestCase):
    def assert_same_state(self, a, b):
        self.assertEqual(list(a), list(b))
        for name in a:
            self.assert_same(a[name], b[name])

    def test_full_state_is_a_dict(self):
        plain, sharded = model(), shard(model())
        state = Ebb.get_full_state_dict(sharded, False)
        self.assert_same_state(state, plain.state_dict())
        other = shard(model())
        train(other, Ebb.AdamW(other, 1e-2), 1)
        self.assertEqual(Ebb.load_full_state_dict(other, state, True), ([], []))
        self.assertEqual(Ebb.load_full_state_dict(other, {**state, "more": Ebb.ones(1)}, strict=False),
                         ([], ["more"]))
        self.assert_same_state(Ebb.get_full_state_dict(other, True), state)

    def test_optimizer_goes_on(self):
        plain, sharded = model(), shard(model())
        a, b = Ebb.AdamW(plain, 1e-2), Ebb.AdamW(sharded, 1e-2)
        train(plain, a, 2)
        Ebb.load_full_state_dict(sharded, plain.state_dict(), False, True)
        Ebb.load_full_optimizer_state(b, a.get_state(), False)
        self.assertEqual(Ebb.get_full_optimizer_state(b, False)["n_steps"], 2)
        train(plain, a, 2)
        train(sharded, b, 2)
        self.assert_same_state(Ebb.get_full_state_dict(sharded, False), plain.state_dict())

    def test_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            sharded = shard(model())
            optimizer = Ebb.AdamW(sharded, 1e-2)
            train(sharded, optimizer, 2)
            Ebb.save_sharded_state(sharded, optimizer, folder)
            Ebb.save_sharded_state(sharded, optimizer, folder)
            self.assertEqual(len(os.listdir(folder)), 4)
            plain = model()
            again = Ebb.AdamW(plain, 1e-2)
            Ebb.load_sharded_state(plain, again, folder)
            self.assert_same_state(plain.state_dict(), Ebb.get_full_state_dict(sharded, False))
            train(sharded, optimizer, 2)
            train(plain, again, 2)
            self.assert_same_state(plain.state_dict(), Ebb.get_full_state_dict(sharded, False))

    def test_training_state(self):
        with tempfile.TemporaryDirectory() as folder:
            module = shard(model())
            training = Ebb.TrainingState.new(module, Ebb.AdamW(module, 1e-2), None)
            training.props.config = "small"
            training.save_sharded(folder, 7)
            self.assertEqual(Ebb.TrainingState.read_config(folder), "small")
            self.assertEqual(training.load_sharded(folder), 7)
            with self.assertRaisesRegex(Exception, "save_sharded"):
                training.save(folder, 7)

    def test_errors_name_what_is_wrong(self):
        sharded = shard(model())
        with self.assertRaisesRegex(Exception, "missing"):
            Ebb.load_full_state_dict(sharded, {}, True, True)
        with self.assertRaisesRegex(Exception, "can't read the folder /nowhere"):
            Ebb.load_sharded_state(sharded, None, "/nowhere")
        with self.assertRaisesRegex(Exception, "ebb_load_full_state_dict"):
            sharded.load_state_dict(model().state_dict())


if __name__ == "__main__":
    main()
