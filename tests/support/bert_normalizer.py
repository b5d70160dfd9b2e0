"""BERT's normalizer by Python's Unicode tables: what it does is read from the source of the package tokenizers, and
long_peer_tokenizers.py compares it with that package."""
import unicodedata

# Its blocks of Chinese characters. Of extension E it leaves out the first 256.
HAN = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
       (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))
# Its tables are of an older Unicode: U+1734 is a nonspacing mark there, U+1885 and U+1886 are letters.
MARKS = {"\u1734": True, "\u1885": False, "\u1886": False}


def clean(text):
    """Controls are dropped, blanks become spaces."""
    kept = [c for c in text
            if c in "\t\n\r" or c not in "\0\ufffd" and unicodedata.category(c) not in ("Cc", "Cf", "Co")]
    return "".join(" " if c in "\t\n\r" or unicodedata.category(c) in ("Zs", "Zl", "Zp") else c for c in kept)


def space_han(text):
    return "".join(f" {c} " if any(first <= ord(c) <= last for first, last in HAN) else c for c in text)


def strip_accents(text):
    return "".join(c for c in unicodedata.normalize("NFD", text)
                   if not MARKS.get(c, unicodedata.category(c) == "Mn"))


def lower(text):
    """Of each character by itself: a sigma at the end of a word is one like any other."""
    return "".join("σ" if c == "Σ" else c.lower() for c in text)


def normalize(text, clean_text=True, handle_chinese_chars=True, strip=None, lowercase=True):
    """strip: None for the value of lowercase."""
    text = clean(text) if clean_text else text
    text = space_han(text) if handle_chinese_chars else text
    text = strip_accents(text) if (lowercase if strip is None else strip) else text
    return lower(text) if lowercase else text
