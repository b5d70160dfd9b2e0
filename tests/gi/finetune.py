"""ebb_finetune () trains as the program finetune does: equal losses and equal files, on one rank and on several."""
import filecmp
import json
import os
import subprocess
import tempfile
import unittest

from gi.module import get_introspection_module
from gi.repository import GLib
from support import Ebb, main

_PROGRAM = os.path.join(os.path.abspath(os.environ.get("EBB_BUILD_DIR", "build/release")), "examples", "finetune")
_MODEL = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "fixtures", "chat-model")
_finetune = get_introspection_module("Ebb").finetune


class Finetune(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ebb-gi-finetune-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(self.path("chats.jsonl"), "w", encoding="utf-8") as file:
            for n in range(24):
                file.write(json.dumps({"messages": [{"role": "user", "content": f"What is {n}?"},
                                                    {"role": "assistant", "content": f"{n} it is."}]}) + "\n")

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def run_program(self, *words, model=_MODEL):
        subprocess.run([_PROGRAM, "--model", model, "--data", "chats.jsonl", "--context", "64", "--threads", "1",
                        "--quiet", "--report", "report.json", "--save", "theirs", *map(str, words)], cwd=self.folder,
                       check=True, timeout=200)
        with open(self.path("report.json"), encoding="utf-8") as file:
            return json.load(file)

    def tune(self, model=_MODEL, **settings):
        options = Ebb.FinetuneOptions.new()
        for name, value in {"context": 64, **settings}.items():
            options.set_property(name.replace("_", "-"), value)
        trainer = _finetune(model, [self.path("chats.jsonl")], self.path("ours"), options, None)
        return json.loads(trainer.to_json())

    def compare(self, theirs, ours):
        for name in "losses", "evaluations", "first_step", "last_step", "parameters":
            self.assertEqual(theirs[name], ours[name], name)
        compared = filecmp.dircmp(self.path("theirs"), self.path("ours"))
        self.assertEqual((compared.left_only, compared.right_only, compared.diff_files), ([], [], []))

    def test_all_weights(self):
        self.compare(self.run_program("--batch", 3, "--epochs", 2), self.tune(batch_size=3, epochs=2))

    def test_weights_in_bf16(self):
        Ebb.model_save_full(Ebb.open_model(_MODEL), self.path("bf16"), Ebb.DType.BF16, 0)
        theirs = self.run_program("--eval", 0.25, "--eval-every", 4, "--steps", 10, model="bf16")
        self.compare(theirs, self.tune(self.path("bf16"), held_out="0.25", evaluate_every=4, steps=10))

    def test_an_adapter_over_a_quantized_base(self):
        words = ["--lora", 4, "--base", "nf4", "--accumulate", 2, "--clip", 1, "--seed", 3, "--lr", 0.01]
        theirs = self.run_program(*words)
        self.compare(theirs, self.tune(lora_rank=4, base="nf4", accumulate=2, clip=1, seed=3, learning_rate=0.01))

    def test_ranks_that_shard_and_share_models(self):
        theirs = self.run_program("--lora", 4, "--eval", 0.2, "--ranks", 4, "--tensor-parallel", 2)

        def run(group):
            mesh = Ebb.Mesh.new(group, ["data", "tensor"], [2, 2])
            return self.tune(lora_rank=4, held_out="0.2", mesh=mesh)

        for ours in Ebb.run_ranks(4, run):
            self.compare(theirs, ours)

    def test_a_failure_of_one_rank_is_that_of_all(self):
        def run(group):
            mesh = Ebb.Mesh.new(group, ["data"], [2])
            with self.assertRaisesRegex(GLib.Error, "rank 0: out .*: it is the model, which is only read"):
                options = Ebb.FinetuneOptions(mesh=mesh)
                _finetune(_MODEL, [self.path("chats.jsonl")], _MODEL if group.get_rank() == 0 else None, options, None)
            return True

        self.assertEqual(Ebb.run_ranks(2, run), [True, True])


if __name__ == "__main__":
    main()
