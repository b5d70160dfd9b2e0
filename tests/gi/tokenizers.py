"""Tokenizers of folders, called as a PyTorch user calls them; what they give goes into a model."""
import json
import os
import pathlib
import struct
import sys
import tempfile
import unicodedata

from gi.repository import GLib

from support import Ebb, TestCase, main

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "support"))
import bert_normalizer  # noqa: E402
from gpt2_folder import END, write_gpt2_folder  # noqa: E402


def write_gguf(path, model, tokens, types, eos):
    """A GGUF file of a tokenizer alone."""
    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def listed(kind, values):
        return struct.pack("<IIQ", 9, kind, len(values)) + b"".join(values)

    values = {"tokenizer.ggml.model": struct.pack("<I", 8) + text(model),
              "tokenizer.ggml.tokens": listed(8, [text(token) for token in tokens]),
              "tokenizer.ggml.scores": listed(6, [struct.pack("<f", -i) for i in range(len(tokens))]),
              "tokenizer.ggml.token_type": listed(5, [struct.pack("<i", kind) for kind in types]),
              "tokenizer.ggml.eos_token_id": struct.pack("<II", 4, eos),
              "tokenizer.ggml.add_space_prefix": struct.pack("<IB", 7, 0)}
    with open(path, "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(values)))
        file.write(b"".join(text(key) + value for key, value in values.items()))


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

    def test_transformers_names_encode_and_decode(self):
        for name in ("gpt2", "llama2", "bert-cased"):
            tokenizer = Ebb.open_tokenizer(FIXTURES / name)
            expected = json.loads((FIXTURES / name / "expected.json").read_text(encoding="utf-8"))
            self.assertEqual(tokenizer.encode("x"), expected["framed"])
            for text, tokens, *back in expected["cases"][:20]:
                self.assertEqual(tokenizer.encode(text, special_tokens=False), tokens)
                back = back[0] if back else text
                self.assertEqual(tokenizer.decode(tokens), tokenizer.decode_text(tokens))
                self.assertEqual(tokenizer.decode(tokens, skip_special_tokens=True), back)
                self.assertEqual(tokenizer.decode(tokenizer(text).tokens[0], skip_special_tokens=True), back)
                self.assertEqual(tokenizer.batch_decode(tokenizer([text]).tokens, skip_special_tokens=True), [back])
                self.assertEqual(tokenizer.batch_decode([tokens, []], True), [back, ""])
        self.assertEqual(tokenizer.decode(tokens[0]), tokenizer.decode(tokens[:1]))

    def test_bytes_need_not_be_text(self):
        tokenizer = Ebb.open_tokenizer(FIXTURES / "gpt2")
        tokens = tokenizer.encode(b"a\xff")
        self.assertEqual(tokenizer.decode_bytes(tokens), b"a\xff")
        self.assertEqual(tokenizer.decode(tokens), "a\ufffd")

    def test_a_zero_ends_no_text(self):
        for name in ("gpt2", "llama2"):
            tokenizer = Ebb.open_tokenizer(FIXTURES / name)
            frame = len(tokenizer.encode(""))
            for text in ("a\0b", "\0", "a b\0"):
                tokens = tokenizer.encode(text)
                self.assertEqual(tokenizer.decode_bytes(tokens[frame:] if name == "gpt2" else tokens[1:]),
                                 text.encode())
                self.assertEqual(tokenizer.encode_text_full(text, True), tokens)
                self.assertEqual(tokenizer.encode_text(text), tokenizer.encode(text, special_tokens=False))
                self.assertEqual(tokenizer([text]).tokens.tolist(), [tokens])
                self.assertEqual(tokenizer(text, max_length=frame + 1).tokens.tolist(), [tokens[:frame + 1]])
        self.assertEqual(Ebb.ByteTokenizer().encode("a\0b"), [97, 0, 98])
        chat = Ebb.open_tokenizer(FIXTURES.parent / "chat-model")
        for call in (lambda: tokenizer.find_token("a\0"), lambda: Ebb.open_tokenizer("/tmp\0x"),
                     lambda: setattr(Ebb.Linear(1, 1), "a\0b", Ebb.Linear(1, 1)),
                     lambda: Ebb.Linear(1, 1).register_parameter("a\0", Ebb.zeros((1,))),
                     lambda: chat.apply_chat_template([{"role": "user", "content": "a\0b"}]),
                     lambda: chat.apply_chat_template([{"role": "user", "content": "a"}], date_string="a\0b"),
                     lambda: Ebb.GenerationOptions(stop_strings=["a\0"])):
            with self.assertRaises(ValueError) as caught:
                call()
            self.assertRegex(str(caught.exception), r"\\x00.* has U\+0000: leave it out, strings of C end there")

    def test_a_token_may_have_a_zero(self):
        """In tokenizer.json and in GGUF."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        added = [{"id": 4, "content": "\0!", "normalized": False, "special": True},
                 {"id": 5, "content": "\0?", "normalized": True}]
        vocab = {"a": 0, "\0": 1, "a\0": 2, "?": 3}
        bpe = {"type": "BPE", "unk_token": "?", "vocab": vocab, "merges": [["a", "\0"]]}
        fuse = {"type": "Fuse"}
        for model, decoder, wanted in (
                (bpe, fuse, [1, 2, 0, 4, 0, 5, 3]), ({**bpe, "ignore_merges": True}, fuse, [1, 2, 0, 4, 0, 5, 3]),
                ({"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "", "vocab": vocab},
                 {"type": "WordPiece", "prefix": ""}, [1, 2, 0, 4, 0, 5, 3])):
            for name, content in (("tokenizer.json", {"model": model, "added_tokens": added, "decoder": decoder}),
                                  ("tokenizer_config.json", {"eos_token": "\0!"})):
                pathlib.Path(folder.name, name).write_text(json.dumps(content), encoding="utf-8")
            tokenizer = Ebb.open_tokenizer(folder.name)
            tokens = tokenizer.encode("\0a\0a\0!a\0?b", special_tokens=False)
            self.assertEqual(tokens, wanted)
            self.assertEqual((tokenizer.eos_token_id, tokenizer.eos_token), (4, "\ufffd!"))
            if decoder is fuse:
                self.assertEqual(tokenizer.decode_bytes(tokens[:-1]), b"\0a\0a\0!a\0?")
        path = os.path.join(folder.name, "zero.gguf")
        write_gguf(path, "llama", ["a", "\0", "a\0", "<0x00>", "</s\0>", "?"], [1, 1, 1, 6, 3, 2], 4)
        tokenizer = Ebb.open_tokenizer(path)
        self.assertEqual(tokenizer.encode("\0aa\0</s\0>", special_tokens=False), [1, 0, 2, 4])
        self.assertEqual(tokenizer.eos_token_id, 4)

    def test_cut_texts_keep_their_frame(self):
        """As transformers cuts them: special tokens count, and stay."""
        for name in ("bert-cased", "llama2", "gpt2"):
            tokenizer = Ebb.open_tokenizer(FIXTURES / name)
            plain = tokenizer.encode("one two three four", special_tokens=False)
            framed = tokenizer.encode("one two three four")
            begin = framed.index(plain[0])
            n_special = len(framed) - len(plain)
            for most in range(max(n_special, 1), len(framed) + 2):
                kept = framed[:begin] + plain[:most - n_special] + framed[begin + len(plain):]
                self.assertEqual(tokenizer("one two three four", max_length=most).tokens.tolist(), [kept])
                self.assertEqual(tokenizer.encode("one two three four", max_length=most, truncation=True), kept)
            self.assertEqual(tokenizer("one two", max_length=2, truncation=False).tokens.tolist(),
                             [tokenizer.encode("one two")])
            self.assertEqual(tokenizer("one two three", special_tokens=False, max_length=2).tokens.shape, (1, 2))
        special = Ebb.open_tokenizer(FIXTURES / "bert-cased")
        frame = special.encode("")
        self.assertEqual(special("[CLS] [CLS] [CLS]", max_length=3).tokens.tolist(), [[frame[0], frame[0], frame[1]]])

    def test_rows_may_be_as_long_as_asked(self):
        tokenizer = Ebb.open_tokenizer(FIXTURES / "bert-cased")
        rows = tokenizer(["one", "one two three four five"], padding="max_length", truncation=True, max_length=6)
        self.assertEqual(rows.tokens.shape, (2, 6))
        self.assertEqual(tokenizer("one", padding="max_length", max_length=6).tokens.tolist()[0][-1],
                         tokenizer.pad_token_id)
        rows = tokenizer(["one", "one two three four five"], padding="max_length", truncation=False, max_length=4)
        self.assertEqual(rows.mask.tolist()[1], [True] * len(tokenizer.encode("one two three four five")))
        self.assertEqual(tokenizer(["one", "one two"], padding="longest").tokens.tolist(),
                         tokenizer(["one", "one two"], padding=True).tokens.tolist())

    def test_tokens_are_decoded_as_they_come(self):
        tokenizer = Ebb.open_tokenizer(FIXTURES / "gpt2")
        decoder = Ebb.TokenDecoder(tokenizer, skip_special_tokens=True)
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
        self.assertEqual((tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.sep_token_id),
                         ("<|begin_of_text|>", "<|end_of_text|>", None, None))
        self.assertEqual((len(tokenizer), tokenizer.vocab_size), (tokenizer.get_vocab_size(),) * 2)
        bert = Ebb.open_tokenizer(FIXTURES / "bert-cased")
        self.assertEqual((bert.cls_token, bert.mask_token, bert.unk_token), ("[CLS]", "[MASK]", "[UNK]"))

    def test_the_token_for_padding_may_be_chosen(self):
        tokenizer = Ebb.open_tokenizer(FIXTURES / "llama3")
        for token in (tokenizer.bos_token, tokenizer.bos_token_id):
            tokenizer.pad_token = token
            self.assertEqual((tokenizer.pad_token, tokenizer.pad_token_id),
                             (tokenizer.bos_token, tokenizer.bos_token_id))
            rows = tokenizer(["one", "one two three four"], padding=True)
            self.assertEqual(rows.tokens.tolist()[0][-1], tokenizer.bos_token_id)
            tokenizer.pad_token_id = None
            self.assertIsNone(tokenizer.pad_token)


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

    def test_a_tokenizer_shows_itself_and_pads_where_it_is_told(self):
        tokenizer = Ebb.open_tokenizer(self.folder.name)
        self.assertEqual(repr(tokenizer), f"PipelineTokenizer(vocab_size={len(tokenizer)}, bos_token={END!r}, "
                                          f"eos_token={END!r}, unk_token={END!r})")
        self.assertEqual((tokenizer.padding_side, tokenizer.chat_template), ("right", None))
        tokenizer.padding_side = "left"
        texts = ["the the", "the"]
        self.assertEqual(tokenizer(texts, padding=True).mask.tolist()[1], [False, True])
        self.assertEqual(tokenizer(texts, padding=True, padding_side="right").mask.tolist()[1], [True, False])

    def test_mistakes_are_named(self):
        for make, kind, words in (
                (lambda: self.tokenizer(["the", "the man"]), ValueError, "rows of 1 to 4 tokens: pass padding=True"),
                (lambda: self.tokenizer(3), TypeError, "text is 3: it must be a str or a list of str"),
                (lambda: self.tokenizer(["a", 3]), TypeError, "it must be a str or a list of str"),
                (lambda: self.tokenizer("a", padding_side="top"), ValueError, "padding_side is 'top'"),
                (lambda: Ebb.ByteTokenizer()(["a", "bc"], padding=True), ValueError, "pass one, as padding=0"),
                (lambda: self.tokenizer("a", return_tensors="np"), TypeError, "'return_tensors': leave it out, tok"),
                (lambda: self.tokenizer("a", add_special_tokens=False), TypeError, "write special_tokens"),
                (lambda: self.tokenizer("a", stride=2), TypeError, "has no argument 'stride': its arguments are text"),
                (lambda: self.tokenizer("a", truncation=True), ValueError, "truncation=True needs max_length"),
                (lambda: self.tokenizer("a", truncation="left"), ValueError, "truncation is 'left': it must be True"),
                (lambda: self.tokenizer("a", max_length=0), ValueError, "max_length is 0: it must be an int of at lea"),
                (lambda: self.tokenizer("a", max_length="9"), TypeError, "max_length is '9': it must be an int of at"),
                (lambda: self.tokenizer("a", "b"), ValueError, "padding is 'b': it must be True, False, 'longest', "),
                (lambda: self.tokenizer("a", padding="max_length"), ValueError, "padding=\"max_length\" needs max_len"),
                (lambda: Ebb.open_tokenizer(FIXTURES / "bert-cased")("one two", max_length=1), ValueError,
                 "max_length is 1: it must be at least 2, the special tokens around a text"),
                (lambda: setattr(self.tokenizer, "padding_side", "top"), ValueError, "padding_side is 'top'"),
                (lambda: setattr(self.tokenizer, "truncation_side", "left"), AttributeError, "cut at their end"),
                (lambda: self.tokenizer.tokenize("a"), AttributeError, "no tokenize: write [tokenizer.get_token("),
                (lambda: self.tokenizer.encode(["a"]), TypeError, "text is ['a']: it must be a str; tokenizer(texts)"),
                (lambda: self.tokenizer.decode("a"), TypeError, "tokens is 'a': it must be a list of tokens or a ten"),
                (lambda: self.tokenizer.decode([[1]]), TypeError, "batch_decode() takes rows of them"),
                (lambda: self.tokenizer.decode([10**6]), Ebb.Error, "token 1000000"),
                (lambda: setattr(self.tokenizer, "pad_token", "no such"), ValueError, "padding is 'no such': it must"),
                (lambda: self.tokenizer("a").labels, AttributeError, "Encoding has no attribute 'labels'"),
                (lambda: Ebb.open_tokenizer(3), TypeError, "folder is 3: it must be the path of a folder"),
                (lambda: Ebb.open_tokenizer("/nowhere"), Ebb.Error,
                 "/nowhere must be the path of a folder, Ebb downloads none")):
            with self.assertRaises(kind) as caught:
                make()
            self.assertIn(words, str(caught.exception))


# The characters that byte-level vocabularies spell bytes in.
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTES = {**{chr(byte): byte for byte in PRINTABLE},
         **{chr(256 + i): byte for i, byte in enumerate(byte for byte in range(256) if byte not in PRINTABLE)}}


class Cuts(TestCase):
    def test_parts_have_the_tokens_of_the_whole(self):
        """Whatever adds a blank, in front of a text or of each part."""
        vocab = {**BYTES, **{c: 256 + i for i, c in enumerate(["\u2581", "\n", " ", "\u2581a"])}}
        bpe = {"type": "BPE", "unk_token": "?", "vocab": vocab, "merges": [["\u2581", "a"]]}
        metaspaces = [{"type": "Metaspace", "prepend_scheme": scheme, "split": split}
                      for scheme in ("always", "first", "never") for split in (True, False)]
        levels = [{"type": "ByteLevel", "add_prefix_space": adds, "use_regex": regex}
                  for adds in (True, False) for regex in (True, False)]
        prepends = [{"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": "a"},
                                                              "content": " a"}, None]
        text, n_cuts = "a b\nab a\n b  a\nb\na b", 0
        with tempfile.TemporaryDirectory() as folder:
            for step in metaspaces + levels:
                for steps in ([step], [{"type": "WhitespaceSplit"}, step]):
                    for normalizer in prepends:
                        content = {"model": bpe, "normalizer": normalizer,
                                   "added_tokens": [{"id": 9, "content": "b", "lstrip": True}][:len(steps) - 1],
                                   "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}
                        if content["added_tokens"]:
                            content["added_tokens"][0]["id"] = vocab["b"]
                        pathlib.Path(folder, "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
                        tokenizer = Ebb.open_tokenizer(folder)
                        whole = tokenizer.encode_text(text)
                        for start in range(len(text)):
                            cut = tokenizer.find_cut(GLib.Bytes.new(text.encode()), start)
                            if cut >= 0:
                                n_cuts += 1
                                self.assertEqual(tokenizer.encode_text(text[:cut]) + tokenizer.encode_text(text[cut:]),
                                                 whole, (steps, normalizer, cut))
        self.assertGreater(n_cuts, 20)


class Blanks(TestCase):
    def test_the_first_word_alone_begins_with_a_blank(self):
        """Also where an earlier step has cut the words, as tokenizers 0.23 has it."""
        vocab = {c: i for i, c in enumerate(["?", "a", "b", "-", "\u2581", "\u2581a", "\u2581b"])}
        first = {"type": "Metaspace", "prepend_scheme": "first"}
        dash = {"type": "Split", "pattern": {"String": "-"}, "behavior": "Isolated"}
        for steps, text, words in (([{"type": "WhitespaceSplit"}, first], "a b a", ["\u2581a", "b", "a"]),
                                   ([dash, first], "a-b a", ["\u2581a", "-", "b", "\u2581a"])):
            content = {"model": {"type": "BPE", "unk_token": "?", "vocab": vocab,
                                 "merges": [["\u2581", "a"], ["\u2581", "b"]]},
                       "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}
            with tempfile.TemporaryDirectory() as folder:
                pathlib.Path(folder, "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
                tokenizer = Ebb.open_tokenizer(folder)
            self.assertEqual(tokenizer.encode_text(text), [vocab[word] for word in words])


class CharacterTables(TestCase):
    """Each code point to U+10FFFF through each normalizer, against Python's tables."""

    @classmethod
    def setUpClass(cls):
        cls.known = [chr(c) for c in range(1, 0x110000) if c != 10 and not 0xd800 <= c < 0xe000
                     and unicodedata.category(chr(c)) not in ("Cn", "Co")]

    def normalize(self, normalizer, separator="\n"):
        content = {"model": {"type": "BPE", "vocab": BYTES, "merges": []}, "normalizer": normalizer,
                   "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}}
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
            tokenizer = Ebb.open_tokenizer(folder)
        tokens = tokenizer.encode(separator.join(self.known).encode()).numpy()
        return tokens.astype("uint8").tobytes().decode().split(separator)

    def compare(self, name, got, function):
        self.assertEqual(len(got), len(self.known), name)
        bad = [(hex(ord(c)), made, function(c)) for c, made in zip(self.known, got)
               if made != function(c) and GLib.unichar_isdefined(c)]  # GLib's tables may be older
        self.assertEqual(bad, [], f"{name}: {len(bad)} of {len(self.known)}")

    def test_each_character_is_normalized_as_in_python(self):
        def lower(text):
            return "".join("σ" if c == "Σ" else c.lower() for c in text)

        def strip(text):
            return "".join(c for c in text if not unicodedata.category(c).startswith("M"))

        wanted = {**{form: lambda text, form=form: unicodedata.normalize(form, text)
                     for form in ("NFC", "NFD", "NFKC", "NFKD")},
                  "Lowercase": lower, "StripAccents": strip}
        for name, function in wanted.items():
            self.compare(name, self.normalize({"type": name}), function)

    def test_berts_normalizer_is_that_of_tokenizers(self):
        """Its newline becomes a blank, so another character stands between those that are compared."""
        separator = "|"
        self.known = [c for c in self.known if c != separator]
        for cleans, han, strip, lowers in ((True, True, None, True), (False, True, None, False),
                                           (True, False, True, False), (False, False, False, True)):
            options = {"clean_text": cleans, "handle_chinese_chars": han, "strip_accents": strip, "lowercase": lowers}
            got = self.normalize({"type": "BertNormalizer", **options}, separator)
            self.compare(str(options), got, lambda c: bert_normalizer.normalize(c, cleans, han, strip, lowers))


if __name__ == "__main__":
    main()
