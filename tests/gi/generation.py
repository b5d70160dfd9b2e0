"""Generation and chat templates from Python: the texts of transformers, callbacks, and what is refused."""
import json
import os

from support import Ebb, TestCase, main

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
FOLDER = os.path.join(ROOT, "tests", "fixtures", "chat-model")
with open(os.path.join(FOLDER, "expected.json"), encoding="utf-8") as _file:
    EXPECTED = json.load(_file)
FIRST = EXPECTED["texts"][0]


class Generation(TestCase):
    def setUp(self):
        self.model, self.tokenizer = Ebb.open_model(FOLDER), Ebb.open_tokenizer(FOLDER)

    def test_texts_tokens_and_tensors_are_prompts(self):
        texts = [text["text_before"] for text in EXPECTED["texts"]]
        made = self.model.generate(texts, tokenizer=self.tokenizer, max_tokens=24, stop_tokens=[2])
        self.assertEqual(made.tokens, [text["tokens"] for text in EXPECTED["texts"]])
        self.assertEqual(made.texts, [text["text"] for text in EXPECTED["texts"]])
        self.assertEqual(made.ends, ["length"] * 3)
        for prompt in (FIRST["prompt"], [FIRST["prompt"]], Ebb.tensor(FIRST["prompt"]), Ebb.tensor([FIRST["prompt"]])):
            made = self.model.generate(prompt, max_tokens=5)
            self.assertEqual((made.tokens, made.texts), ([FIRST["tokens"][:5]], [None]))

    def test_texts_begin_as_in_transformers_and_end_as_the_folder_says(self):
        model, tokenizer = Ebb.open_model(FOLDER), self.tokenizer
        options = Ebb.GenerationOptions(max_tokens=5)
        made = model.generate(tokenizer(FIRST["text_before"]), options=options, tokenizer=tokenizer)
        self.assertEqual((made.tokens, options.props.tokenizer), ([FIRST["tokens"][:5]], None))
        padded = tokenizer([text["text_before"] for text in EXPECTED["texts"]], padding=True)
        made = model.generate(padded, max_tokens=5)
        self.assertEqual(made.tokens, [text["tokens"][:5] for text in EXPECTED["texts"]])

    def test_texts_get_special_tokens(self):
        folder = os.path.join(ROOT, "tests", "fixtures", "tokenizers", "llama2")
        tokenizer = Ebb.open_tokenizer(folder)
        tokens = tokenizer("a").tokens.tolist()[0]
        self.assertEqual(tokens[0], tokenizer.bos_token_id)
        self.assertEqual(self.model.generate("a", tokenizer=tokenizer, max_tokens=4).tokens,
                         self.model.generate(tokens, max_tokens=4).tokens)

    def test_a_callback_gets_tokens_and_may_stop(self):
        seen = []

        def take(row, token, text):
            seen.append((row, token, text))
            return len(seen) < 3

        made = self.model.generate(FIRST["text_before"], tokenizer=self.tokenizer, on_token=take)
        self.assertEqual(made.ends, ["stopped"])
        self.assertEqual([token for _, token, _ in seen], FIRST["tokens"][:3])
        with self.assertRaisesRegex(KeyError, "mine"):
            self.model.generate([5], on_token=lambda *_: {}["mine"])

    def test_mistakes_are_named(self):
        with self.assertRaisesRegex(TypeError, "give the tokenizer too"):
            self.model.generate("x")
        with self.assertRaisesRegex(TypeError, "has no option 'max_token'"):
            self.model.generate([5], max_token=3)
        with self.assertRaisesRegex(Ebb.Error, "prompt 0 is empty"):
            self.model.generate([[]])
        with self.assertRaisesRegex(Ebb.Error, "temperature is -1"):
            self.model.generate([5], temperature=-1)

    def test_conversations_become_text_and_tokens(self):
        template = Ebb.ChatTemplate.open(FOLDER)
        text, spans = template.render(["user", "assistant"], ["Hi", "Yes."], False)
        self.assertTrue(text.endswith("assistant\nYes.<|im_end|>\n"))
        self.assertEqual(text.encode()[spans[0]:spans[1]], b"Yes.<|im_end|>")
        tokens, answers = template.encode(self.tokenizer, ["user", "assistant"], ["Hi", "Yes."], False)
        answer = [token for token, is_answer in zip(tokens.tolist(), answers.tolist()) if is_answer]
        self.assertEqual(self.tokenizer.decode_text(answer), "Yes.<|im_end|>")

    def test_the_cache_has_its_purpose(self):
        self.model.generate(FIRST["prompt"], max_tokens=3)
        self.assertGreater(Ebb.memory_stats()["cache"]["peak"], 0)


if __name__ == "__main__":
    main()
