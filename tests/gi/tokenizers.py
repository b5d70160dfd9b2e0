"""Tokenizers of folders, called as a PyTorch user calls them; what they give goes into a model."""
import json
import os
import pathlib
import sys
import tempfile

from support import Ebb, TestCase, main

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "support"))
from gpt2_folder import END, write_gpt2_folder  # noqa: E402


FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures" / "tokenizers"


class Families(TestCase):
    def test_text_becomes_tokens_and_back(self):
        for name in ("gpt2", "llama3", "qwen", "llama2", "mistral", "gemma", "bert-cased"):
            tokenizer = Ebb.open_tokenizer(FIXTURES / name)
            expected = json.loads((FIXTURES / name / "expected.json").read_text(encoding="utf-8"))
            self.assertEqual(tokenizer("x").tokens.tolist(), [expected["framed"]])
            for text, tokens, *back in expected["cases"][:20]:
                self.assertEqual(tokenizer.encode_text(text), tokens)
                framed = tokenizer(text).tokens.tolist()[0]
                self.assertEqual(tokenizer.decode_text_full(framed, True), back[0] if back else text)

    def test_tokens_are_decoded_as_they_come(self):
        tokenizer = Ebb.open_tokenizer(FIXTURES / "gpt2")
        decoder = Ebb.TokenDecoder.new(tokenizer, True)
        parts = [decoder.push(token) for token in tokenizer.encode_text("a😀 z")]
        self.assertEqual("".join(parts) + decoder.finish(), "a😀 z")
        self.assertTrue(all("\ufffd" not in part for part in parts))

    def test_special_tokens_and_templates(self):
        tokenizer = Ebb.open_tokenizer(FIXTURES / "llama3")
        begin = tokenizer.find_token("<|begin_of_text|>")
        self.assertEqual((tokenizer.bos_token_id, tokenizer.pad_token_id), (begin, None))
        self.assertEqual(tokenizer.get_token(begin), "<|begin_of_text|>")
        self.assertTrue(tokenizer.is_special(begin))
        self.assertIn("for message in messages", tokenizer.get_chat_template())


class Tokenizers(TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        write_gpt2_folder(cls.folder.name)
        cls.tokenizer = Ebb.open_tokenizer(pathlib.Path(cls.folder.name))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_a_text_is_a_row(self):
        the = self.tokenizer.find_token("the")
        encoded = self.tokenizer("thethe")
        self.assertEqual((encoded.tokens.tolist(), encoded.mask.tolist()), ([[the, the]], [[True, True]]))
        self.assertEqual(self.tokenizer.decode_text(encoded.tokens[0].tolist()), "thethe")
        self.assertIs(encoded["input_ids"], encoded["tokens"])
        self.assertIs(encoded.attention_mask, encoded.mask)

    def test_short_rows_are_padded(self):
        end = self.tokenizer.find_token(END)
        self.assertEqual((self.tokenizer.eos_token_id, self.tokenizer.pad_token_id), (end, None))
        texts = ["the the", "the"]
        for side, padded, mask in (("right", [1, end], [True, False]), ("left", [end, 1], [False, True])):
            encoded = self.tokenizer(texts, padding=True, padding_side=side)
            the = self.tokenizer.find_token("the")
            self.assertEqual(encoded.tokens.tolist()[1], [the if token == 1 else token for token in padded])
            self.assertEqual(encoded.mask.tolist(), [[True, True], mask])
        self.assertEqual(self.tokenizer(texts, padding=7).tokens.tolist()[1][1], 7)
        self.assertEqual(self.tokenizer(texts, max_length=1).tokens.shape, (2, 1))

    def test_a_model_takes_it(self):
        model = Ebb.open_model(self.folder.name)
        encoded = self.tokenizer(["an the", "the man in the"], padding=True)
        with Ebb.no_grad():
            logits = model(**encoded)
            alone = model(**self.tokenizer("an the"))
        n = alone.shape[1]
        self.assertEqual(logits.shape[:2], encoded.tokens.shape)
        self.assertLess((logits[0, :n] - alone[0]).numpy().max(), 1e-5)

    def test_mistakes_are_named(self):
        for make, kind, words in (
                (lambda: self.tokenizer(["the", "the man"]), ValueError, "rows of 1 to 4 tokens: pass padding=True"),
                (lambda: self.tokenizer(3), TypeError, "text is 3: it must be a str or a list of str"),
                (lambda: self.tokenizer(["a", 3]), TypeError, "it must be a str or a list of str"),
                (lambda: self.tokenizer("a", padding_side="top"), ValueError, "padding_side is 'top'"),
                (lambda: Ebb.ByteTokenizer()(["a", "bc"], padding=True), ValueError, "pass one, as padding=0"),
                (lambda: self.tokenizer("a").labels, AttributeError, "Encoding has no attribute 'labels'"),
                (lambda: Ebb.open_tokenizer(3), TypeError, "folder is 3: it must be the path of a folder"),
                (lambda: Ebb.open_tokenizer("/nowhere"), Ebb.Error, "/nowhere")):
            with self.assertRaises(kind) as caught:
                make()
            self.assertIn(words, str(caught.exception))


if __name__ == "__main__":
    main()
