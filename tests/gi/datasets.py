"""Datasets from Python: documents of JSON lines packed into rows, masked tokens, held-out parts, and their state."""
import gzip
import json
import os
import tempfile

from support import Ebb, TestCase, main


class Datasets(TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "sums.jsonl")
        with open(self.path, "w", encoding="utf-8") as file:
            for n in range(10):
                file.write(json.dumps({"prompt": f"{n}+{n}=", "completion": f"{2 * n}."}) + "\n")
        self.tokenizer = Ebb.ByteTokenizer()

    def test_documents_are_packed_and_trained_on(self):
        data = Ebb.DocumentDataset([self.path], self.tokenizer, 1)
        self.assertEqual((data.get_n_documents(), data.get_n_rows(16)), (10, 4))
        tokens, targets, starts = data.get_rows(2, 16)
        self.assertEqual((tokens.shape, targets.shape, starts.shape), ((2, 16),) * 3)
        self.assertEqual(set(starts[0].tolist()[:5]), {0})
        self.assertEqual(targets[0].tolist()[:3], [-100] * 3)
        model = Ebb.Gpt(Ebb.GptConfig(layers=1, width=16, heads=2, context=16, vocab=256))
        loss = model(tokens, targets=targets, starts=starts)
        loss.backward()
        self.assertGreater(loss.item(), 0)

    def test_a_part_is_held_out(self):
        data = Ebb.DocumentDataset([self.path], self.tokenizer, 1)
        held = data.hold_out(0.2)
        self.assertEqual((held.get_n_documents(), data.get_n_documents()), (2, 8))
        with self.assertRaisesRegex(Ebb.Error, "a held-out share of 2"):
            data.hold_out(2)

    def test_the_state_goes_on(self):
        first, second = (Ebb.DocumentDataset([self.path], self.tokenizer, seed) for seed in (1, 2))
        first.get_rows(3, 8)
        second.load_state(first.get_state())
        self.assertEqual(second.props.position, 3)
        self.assertEqual(first.get_rows(1, 8)[0].tolist(), second.get_rows(1, 8)[0].tolist())

    def test_tokens_are_hidden(self):
        text = Ebb.TextDataset([self.path], self.tokenizer, 1)
        tokens, targets, starts = Ebb.MaskedDataset(text, self.tokenizer).get_rows(1, 40)
        self.assertIsNone(starts)
        self.assertEqual(sum(target != -100 for target in targets[0].tolist()), 6)
        self.assertLessEqual(max(tokens[0].tolist()), 256)

    def test_compressed_files_are_refused(self):
        path = os.path.join(os.path.dirname(self.path), "sums.txt")
        with open(path, "wb") as file:
            file.write(gzip.compress(b"1+1=2. " * 99))
        for kind in Ebb.TextDataset, Ebb.DocumentDataset:
            with self.assertRaisesRegex(Ebb.Error, "sums.txt: it is compressed by gzip: unpack it first"):
                kind([path], self.tokenizer, 1)
        self.assertTrue(Ebb.check_text_format("bytes", bytes(99), True))
        with self.assertRaisesRegex(Ebb.Error, "^bytes: it is binary data, or text in another encoding than UTF-8"):
            Ebb.check_text_format("bytes", bytes(99), False)

    def test_bad_lines_are_named(self):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write("{}\n")
        with self.assertRaisesRegex(Ebb.Error, "sums.jsonl: line 11: the object has neither text"):
            Ebb.DocumentDataset([self.path], self.tokenizer, 1)


if __name__ == "__main__":
    main()
