#!/usr/bin/env python3
"""Compares Ebb's tokenizers with PyPI's `tokenizers`, live; it needs scripts/peer-venv.

Every family of tests/fixtures/make_tokenizers.py is trained anew with a larger vocabulary and compared on 10,000 lines;
then small tokenizers that differ in one part each, on fewer. Tokens, tokens with special ones, and decoded text with
and without special tokens must be equal, whole and in the parts that a stream gives. Last, each character of Unicode is
looked at in every class and normal form. With --speed it times both instead, one thread each, in one run.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import unicodedata

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"

SOURCE = os.environ.get(
    "EBB_SOURCE_DIR", os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
)
PROGRAM = os.path.join(
    os.environ.get("EBB_BUILD_DIR", os.path.join(SOURCE, "build", "release")), "tests", "bench", "tokenizer"
)
sys.path[:0] = [os.path.join(SOURCE, "tests", name) for name in ("fixtures", "support")]

try:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
except ImportError:
    PEER = subprocess.run(
        [os.path.join(SOURCE, "scripts", "peer-venv"), "--path"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if sys.executable == PEER or not os.path.exists(PEER):
        print("The package tokenizers is missing: scripts/peer-venv installs it", file=sys.stderr)
        sys.exit(77)
    os.execv(PEER, [PEER, *sys.argv])

import bert_normalizer
import make_tokenizers
import tokenizer_texts


class Results:
    """What the program wrote."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        self.at = 0

    def read(self, size):
        self.at += size
        return self.data[self.at - size : self.at]

    def tokens(self):
        n = struct.unpack("<I", self.read(4))[0]
        return list(struct.unpack(f"<{n}I", self.read(4 * n)))

    def text(self):
        return self.read(struct.unpack("<I", self.read(4))[0]).decode()


def run(folder, texts, work):
    with open(os.path.join(work, "records"), "wb") as file:
        for text in texts:
            data = text.encode()
            file.write(struct.pack("<I", len(data)) + data)
    results = os.path.join(work, "results")
    done = subprocess.run(
        [PROGRAM, "--records", results, folder, os.path.join(work, "records")],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or done)
    return Results(results)


def compare(name, tokenizer, folder, texts, work, streams=True):
    """The number of differences, of which the first few are printed."""
    tokenizer.save(os.path.join(folder, "tokenizer.json"), pretty=False)
    try:
        results = run(folder, texts, work)
    except RuntimeError as error:
        print(f"{name}: {error}")
        return 1
    n_wrong = 0
    for text in texts:
        plain = results.tokens()
        framed = results.tokens()
        decoded = [(results.text(), results.text()) for _ in range(2)]
        expected = tokenizer.encode(text, add_special_tokens=False).ids
        expected_framed = tokenizer.encode(text).ids
        pairs = [(plain, expected), (framed, expected_framed)]
        for skip in (False, True):
            whole = tokenizer.decode(expected_framed, skip_special_tokens=skip).replace("\0", "\ufffd")
            pairs += [(decoded[skip][0], whole), (decoded[skip][1], whole)][: 1 + streams]
        for got, wanted in pairs:
            if got != wanted:
                n_wrong += 1
                if n_wrong <= 3:
                    print(f"{name}: {text!r}:\n  got    {got!r}\n  wanted {wanted!r}")
                    if isinstance(got, list):
                        print(
                            f"  got    {[tokenizer.id_to_token(i) for i in got]}\n"
                            f"  wanted {[tokenizer.id_to_token(i) for i in wanted]}"
                        )
                break
    print(f"{name}: {len(texts)} texts, {n_wrong} differ")
    return n_wrong


def variants():
    """Tokenizers that differ in one part, by name."""
    word_level = pre_tokenizers.Metaspace()

    def show(pattern):
        return json.loads(pre_tokenizers.Split(pattern, "isolated").__getstate__())["pattern"]

    base, _ = make_tokenizers.llama2(500)
    base.normalizer = None

    def vary(name, **parts):
        tokenizer = Tokenizer.from_str(base.to_str())
        tokenizer.pre_tokenizer = word_level
        for part, value in parts.items():
            setattr(tokenizer, part, value)
        return name, tokenizer

    behaviors = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
    for behavior in behaviors:
        for invert in (False, True):
            for pattern in (
                Regex(r"\s+"),
                Regex(r"[\w']+|\d"),
                Regex("a*"),
                "e",
                Regex(r"(?<=o) |\p{Lu}(?=\p{Ll})|^.|.$"),
            ):
                yield vary(
                    f"Split {show (pattern)} {behavior} {invert}",
                    pre_tokenizer=pre_tokenizers.Split(pattern, behavior, invert),
                )
        yield vary(f"Punctuation {behavior}", pre_tokenizer=pre_tokenizers.Punctuation(behavior))
    for scheme in ("always", "first", "never"):
        for split in (False, True):
            yield vary(
                f"Metaspace {scheme} {split}",
                pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split),
                decoder=decoders.Metaspace(prepend_scheme=scheme),
            )
            yield vary(
                f"Digits, Metaspace {scheme} {split}",
                pre_tokenizer=pre_tokenizers.Sequence(
                    [
                        pre_tokenizers.Digits(individual_digits=split),
                        pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split),
                    ]
                ),
            )
    for part in (
        pre_tokenizers.Whitespace(),
        pre_tokenizers.WhitespaceSplit(),
        pre_tokenizers.BertPreTokenizer(),
        pre_tokenizers.Digits(True),
        pre_tokenizers.Digits(False),
        pre_tokenizers.CharDelimiterSplit("e"),
        None,
    ):
        yield vary(f"{part}", pre_tokenizer=part)
    for part in (
        normalizers.NFC(),
        normalizers.NFD(),
        normalizers.NFKC(),
        normalizers.NFKD(),
        normalizers.Lowercase(),
        normalizers.StripAccents(),
        normalizers.Strip(),
        normalizers.Strip(left=False),
        normalizers.Prepend("xy"),
        normalizers.Replace(Regex(r"\s+"), "_"),
        normalizers.Replace("e", "aé"),
        normalizers.Replace(Regex("b*"), "-"),
        normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]),
        *[
            normalizers.BertNormalizer(clean, han, accents, lower)
            for clean in (True, False)
            for han in (True, False)
            for accents in (True, False, None)
            for lower in (True, False)
        ],
    ):
        yield vary(f"{type(part).__name__} {part}", normalizer=part)
    for part in (
        None,
        decoders.WordPiece("##", True),
        decoders.WordPiece("", False),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Replace(Regex("[aeiou]"), "*"),
        decoders.Strip("▁", 1, 0),
        decoders.Metaspace(),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("▁t", "T")]),
        decoders.Sequence([decoders.Fuse(), decoders.Strip("▁", 2, 0)]),
    ):
        yield vary(f"decoder {part}", decoder=part)
    template = processors.TemplateProcessing
    for part in (
        None,
        template(single="<s> <s> $A </s> <unk>", special_tokens=[("<s>", 0), ("</s>", 1), ("<unk>", 2)]),
        processors.BertProcessing(("</s>", 1), ("<s>", 0)),
        processors.RobertaProcessing(("</s>", 1), ("<s>", 0)),
        processors.Sequence(
            [
                processors.ByteLevel(),
                processors.BertProcessing(("</s>", 1), ("<s>", 0)),
                template(single="<unk> $A", special_tokens=[("<unk>", 2)]),
            ]
        ),
    ):
        yield vary(f"post-processor {part}", post_processor=part)
    yield from variants_of_models(base)
    yield from variants_of_added_tokens(base)


def variants_of_models(base):
    for changes in (
        {"byte_fallback": False},
        {"byte_fallback": False, "fuse_unk": False},
        {"ignore_merges": True},
        {"fuse_unk": False},
    ):
        data = json.loads(base.to_str())
        data["model"].update(changes)
        yield f"BPE {changes}", Tokenizer.from_str(json.dumps(data))
    data = json.loads(base.to_str())
    for name in [f"<0x{b:02X}>" for b in range(0xE2, 0xE4)]:
        i = data["model"]["vocab"].pop(name)
        data["model"]["vocab"][f"gone{i}"] = i
    yield "BPE with some bytes", Tokenizer.from_str(json.dumps(data))
    data["model"]["merges"] = [" ".join(merge) for merge in data["model"]["merges"] if " " not in "".join(merge)]
    yield "BPE with merges of one string", Tokenizer.from_str(json.dumps(data))
    # Merges whose ranks stand in no order.
    data = json.loads(base.to_str())
    data["model"]["merges"].sort(key=lambda merge: hash("".join(merge)[::-1]) % 1000)
    yield "BPE with merges out of order", Tokenizer.from_str(json.dumps(data))
    for prefix in (True, False):
        for regex in (True, False):
            tokenizer, _ = make_tokenizers.gpt2(500)
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)
            yield f"ByteLevel {prefix} {regex}", tokenizer
    tokenizer, _ = make_tokenizers.gpt2(500)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.Punctuation(), pre_tokenizers.ByteLevel(True)]
    )
    yield "Digits, Punctuation, ByteLevel", tokenizer
    for prefix, longest in (("##", 5), ("", 100), ("é", 100)):
        tokenizer, _ = make_tokenizers.bert(500)
        data = json.loads(tokenizer.to_str())
        data["model"].update({"continuing_subword_prefix": prefix, "max_input_chars_per_word": longest})
        yield f"WordPiece {prefix} {longest}", Tokenizer.from_str(json.dumps(data))


def variants_of_added_tokens(base):
    for normalizer in (
        None,
        normalizers.Lowercase(),
        normalizers.NFKD(),
        normalizers.Replace(" ", "▁"),
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
    ):
        for flags in range(16):
            tokenizer = Tokenizer.from_str(base.to_str())
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
            if normalizer is not None:
                tokenizer.normalizer = normalizer
            options = {
                "lstrip": bool(flags & 1),
                "rstrip": bool(flags & 2),
                "single_word": bool(flags & 4),
                "normalized": bool(flags & 8),
            }
            tokenizer.add_tokens(
                [AddedToken(text, **options) for text in ("it", "it'", "é", "<|x|>", " x", "x y", "Is")]
            )
            tokenizer.add_special_tokens([AddedToken(text, **options) for text in ("[MASK]", "tokens", "ＱＺ", "S ")])
            yield f"added tokens {options} {normalizer}", tokenizer


CHARACTERS = [
    ("is_space", normalizers.Replace("x", "y"), pre_tokenizers.WhitespaceSplit()),
    ("word", None, pre_tokenizers.Whitespace()),
    ("bert", normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()),
    ("digits", None, pre_tokenizers.Digits(True)),
    ("NFC", normalizers.NFC(), None),
    ("NFD", normalizers.NFD(), None),
    ("NFKC", normalizers.NFKC(), None),
    ("NFKD", normalizers.NFKD(), None),
    ("lower", normalizers.Lowercase(), None),
    ("accents", normalizers.StripAccents(), None),
    ("GPT-2", None, pre_tokenizers.Split(Regex(make_tokenizers.LLAMA3), "isolated")),
    ("classes", None, pre_tokenizers.Split(Regex(r"[\w\s]|\d\s|\S\W"), "isolated")),
]


def is_old(c):
    return unicodedata.ucd_3_2_0.category(c) != "Cn"


def compare_bert_normalizer():
    """What tests/gi/tokenizers.py compares Ebb with: characters since Unicode 3.2 are listed, not counted."""
    n_wrong = 0
    known = [chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) != "Cn"]
    for options in ((True, True, None, True), (False, True, None, False), (True, False, True, False)):
        peer = normalizers.BertNormalizer(*options)
        wrong = [c for c in known if peer.normalize_str(c) != bert_normalizer.normalize(c, *options)]
        print(f"BertNormalizer{options}: {len(known)}, {len(wrong)} differ")
        n_wrong += sum(map(is_old, wrong))
    return n_wrong


def compare_characters(work, folder):
    """Every character between two others, many in a text: the tokens are the characters themselves, in words.

    Characters that are newer than Unicode 3.2, which the two may know in different versions, are listed, not counted.
    """
    n_wrong = compare_bert_normalizer()
    blocks = [
        [chr(c) for c in range(block, block + 64) if not 0xD800 <= c < 0xE000]
        for block in [
            *range(0, 0x3400, 64),
            *range(0xA000, 0x12000, 64),
            *range(0x16000, 0x17000, 64),
            *range(0x1B000, 0x1FC00, 64),
            *range(0xE0000, 0xE0200, 64),
            0x10FF00,
            0x2F800,
        ]
    ]
    vocabulary = {f"<0x{b:02X}>": b for b in range(256)}
    for text in ("a", "b", "aa", "bb", "ab", "▁"):
        vocabulary[text] = len(vocabulary)
    for name, normalizer, pre_tokenizer in CHARACTERS:
        tokenizer = Tokenizer(
            models.BPE(vocab=vocabulary, merges=[("a", "a"), ("b", "b"), ("a", "b")], byte_fallback=True)
        )
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        if pre_tokenizer is not None:
            tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
        texts = [f"a{c}ab{c} {c}b" for block in blocks for c in block if c != "\0"]
        tokenizer.save(os.path.join(folder, "tokenizer.json"))
        results = run(folder, texts, work)
        wrong = []
        for text in texts:
            plain = results.tokens()
            results.tokens()
            for _ in range(4):
                results.text()
            if plain != tokenizer.encode(text, add_special_tokens=False).ids:
                wrong.append(ord(text[1]))
        ranges = []
        for c in wrong:
            if ranges and ranges[-1][1] == c - 1:
                ranges[-1][1] = c
            else:
                ranges.append([c, c])
        print(
            f"characters, {name}: {len(texts)}, {len(wrong)} differ",
            " ".join(f"{a:04X}" + (f"-{b:04X}" if b > a else "") for a, b in ranges)[:600],
        )
        n_wrong += sum(is_old(chr(c)) for c in wrong)
    return n_wrong


def time_both(n_megabytes, vocabulary):
    """MB/s of processor time of both on the same text, in turns, the best of three."""
    import random

    rng = random.Random(3)
    pieces = tokenizer_texts.corpus() + tokenizer_texts.CODE
    english = [
        open(os.path.join(SOURCE, "docs", name), encoding="utf-8").read()
        for name in sorted(os.listdir(os.path.join(SOURCE, "docs")))
        if name.endswith(".md")
    ]
    paragraphs = [p for text in english for p in text.split("\n\n")]
    text = ""
    while len(text) < n_megabytes * 1e6:
        text += "\n\n".join(rng.choice(paragraphs) for _ in range(200)) + "\n"
        text += "\n".join(rng.choice(pieces) for _ in range(20)) + "\n"
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "text")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        size = len(text.encode()) / 1e6
        lines = text.split("\n")
        for name, family in make_tokenizers.FAMILIES.items():
            make_tokenizers.tokenizer_texts.corpus = lambda: paragraphs + pieces
            tokenizer, _ = family(vocabulary)
            folder = os.path.join(work, name)
            os.mkdir(folder)
            tokenizer.save(os.path.join(folder, "tokenizer.json"))
            for options, parts in (([], [text]), (["--lines"], lines)):
                best = float("inf")
                for _ in range(3):
                    begin = time.process_time()
                    n_tokens = sum(
                        len(encoding.ids)
                        for encoding in (tokenizer.encode(part, add_special_tokens=False) for part in parts)
                    )
                    best = min(best, time.process_time() - begin)
                done = json.loads(
                    subprocess.run(
                        [PROGRAM, "--repeats", "3", *options, folder, path], check=True, capture_output=True
                    ).stdout
                )
                print(
                    f"{name} {'by lines' if options else 'at once'}: Ebb {done['encode_mb_s']:.1f} MB/s, tokenizers "
                    f"{size / best:.1f} MB/s; opened in {done['open_ms']:.1f} ms; "
                    f"decoded at {done['decode_mb_s']:.0f} MB/s; "
                    f"tokens {done['tokens']} and {n_tokens}",
                    flush=True,
                )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lines", type=int, default=10000)
    parser.add_argument("--only", default="")
    parser.add_argument("--speed", type=float, default=0, metavar="MB", help="time both on so many MB")
    parser.add_argument("--vocabulary", type=int, default=0)
    options = parser.parse_args()
    if options.speed > 0:
        time_both(options.speed, options.vocabulary or 8000)
        return 0
    n_wrong = 0
    with tempfile.TemporaryDirectory() as work:
        folder = os.path.join(work, "folder")
        os.mkdir(folder)
        for name, family in make_tokenizers.FAMILIES.items():
            if options.only in name:
                tokenizer, _ = family(options.vocabulary or 2000)
                texts = tokenizer_texts.lines(options.lines, 5, make_tokenizers.get_special(tokenizer))
                n_wrong += compare(name, tokenizer, folder, texts, work)
        for name, tokenizer in variants():
            if options.only in name:
                texts = tokenizer_texts.lines(
                    options.lines // 20, 6, ["it", "It's", "é", "<|x|>", " x ", "[MASK]", "tokens", "S "]
                )
                n_wrong += compare(name, tokenizer, folder, texts, work, streams="Strip" not in name)
        if options.only in "characters":
            n_wrong += compare_characters(work, folder)
    print("all equal" if n_wrong == 0 else f"{n_wrong} texts differ")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
