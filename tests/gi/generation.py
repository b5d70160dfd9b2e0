"""Generation and chat templates from Python: the texts of transformers, callbacks, Ctrl-C, and what is refused."""
import json
import os
import signal
import tempfile
import threading

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

    def test_what_a_tokenizer_made_is_given_by_name(self):
        texts = [text["text_before"] for text in EXPECTED["texts"]]
        expected = [text["tokens"][:5] for text in EXPECTED["texts"]]
        padded = self.tokenizer(texts, padding=True)
        self.assertEqual(self.model.generate(**padded, max_tokens=5).tokens, expected)
        made = self.model.generate(input_ids=padded.input_ids, attention_mask=padded.attention_mask, max_tokens=5)
        self.assertEqual(made.tokens, expected)
        self.assertEqual(self.model.generate(tokens=[FIRST["prompt"]], max_tokens=5).tokens, expected[:1])
        self.assertEqual(self.model.generate(Ebb.tensor(FIRST["prompt"]).numpy(), max_tokens=5).tokens,
                         expected[:1])

    def test_a_stop_string_may_be_given_alone(self):
        for stop in ("V", ["V"], ("never", "V")):
            made = self.model.generate(FIRST["text_before"], tokenizer=self.tokenizer, stop_strings=stop)
            self.assertEqual((made.texts, made.ends), ([FIRST["text"].split("V")[0]], ["string"]))

    def test_options_are_shown(self):
        options = Ebb.GenerationOptions(max_tokens=3, stop_strings="x")
        options.set_stop_tokens([7])
        self.assertTrue(repr(options).startswith("GenerationOptions(max_tokens=3, min_tokens=0, "))
        self.assertIn("stop_strings=['x']", repr(options))
        self.assertTrue(repr(options).endswith("stop_tokens=[7], forced_eos_tokens=[], suppress_tokens=[], "
                                               "begin_suppress_tokens=[])"))
        self.assertEqual(Ebb.GenerationOptions.new_for_model(self.model).get_stop_tokens(), [2])

    def test_conversations_are_answered(self):
        messages = [{"role": "system", "content": EXPECTED["system"]},
                    {"role": "user", "content": EXPECTED["question"]}]
        answer = EXPECTED["answer"]
        self.assertEqual(self.tokenizer.apply_chat_template(messages, add_generation_prompt=True), answer["prompt"])
        made = self.model.generate(messages=messages, tokenizer=self.tokenizer, max_tokens=len(answer["tokens"]))
        self.assertEqual((made.tokens, made.texts), ([answer["tokens"]], [answer["text"]]))
        made = self.model.generate(messages=[messages, messages[1:]], tokenizer=self.tokenizer, max_tokens=4)
        self.assertEqual((len(made.tokens), made.tokens[0]), (2, answer["tokens"][:4]))

    def test_an_answer_ends_with_its_turn(self):
        """Also if the folder names another token, unless the caller says which tokens do."""
        with tempfile.TemporaryDirectory() as folder:
            for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
                os.symlink(os.path.join(FOLDER, name), os.path.join(folder, name))
            with open(os.path.join(folder, "generation_config.json"), "w", encoding="utf-8") as file:
                file.write('{"eos_token_id": 0}')
            model = Ebb.open_model(folder)
        end = self.tokenizer.find_token("<|im_end|>")
        weight = model.embed_tokens.weight                    # of the logits, too: all are 0 but that of one token
        given = {"messages": [{"role": "user", "content": "x"}], "tokenizer": self.tokenizer, "max_tokens": 3}
        with Ebb.no_grad():
            for token in range(model.config.vocab):
                if token != end:
                    weight[token] = weight[token] * 0
            if model.generate(**given, stop_tokens=[]).tokens[0][0] != end:
                model.norm.weight.mul_(-1)                    # its logit is above 0 then
        self.assertEqual(model.generate(**given, stop_tokens=[]).tokens[0][0], end)
        self.assertEqual(model.generate(**given, stop_tokens=[]).ends, ["length"])
        for options in (None, Ebb.GenerationOptions(top_k=3)):
            made = model.generate(**given, options=options)
            self.assertEqual((made.tokens, made.ends), ([[end]], ["token"]))
        # The folder's token ends it, too.
        made = model.generate(**given, suppress_tokens=[*range(1, model.config.vocab)])
        self.assertEqual((made.tokens, made.ends), ([[0]], ["token"]))

    def test_keys_of_folders_count_unless_they_are_given(self):
        first = FIRST["tokens"][0]
        given = {"prompts": FIRST["text_before"], "tokenizer": self.tokenizer, "max_tokens": 24}
        with tempfile.TemporaryDirectory() as folder:
            for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
                os.symlink(os.path.join(FOLDER, name), os.path.join(folder, name))
            with open(os.path.join(folder, "generation_config.json"), "w", encoding="utf-8") as file:
                json.dump({"stop_strings": ["V"], "suppress_tokens": [first], "forced_eos_token_id": [2, 3]}, file)
            model = Ebb.open_model(folder)
        made = model.generate(**given, suppress_tokens=[])
        self.assertEqual((made.texts, made.ends), ([FIRST["text"].split("V")[0]], ["string"]))
        self.assertNotIn(first, model.generate(**given, stop_strings=[]).tokens[0])
        self.assertEqual(model.generate(**{**given, "max_tokens": 1}).tokens, [[2]])
        self.assertEqual(model.generate(**{**given, "max_tokens": 1}, forced_eos_tokens=[], suppress_tokens=[]).tokens,
                         [[first]])

    def test_conversations_become_text_by_the_tokenizer(self):
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]
        apply = self.tokenizer.apply_chat_template
        text = apply(messages, tokenize=False)
        self.assertEqual(apply([{**message, "weight": 0, "train": False, "name": None} for message in messages]),
                         apply(messages))
        self.assertTrue(text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n"))
        self.assertEqual(apply(messages), self.tokenizer.encode(text, special_tokens=False))
        prompt = apply(messages[:1], tokenize=False, add_generation_prompt=True)
        self.assertTrue(prompt.endswith("<|im_start|>assistant\n"))
        rows = apply([messages, messages[:1]], return_dict=True, padding=True)
        self.assertEqual(rows.tokens.tolist()[0], apply(messages))
        self.assertEqual(rows.mask.tolist()[1].count(True), len(apply(messages[:1])))
        rows = apply([messages, messages[:1]], return_dict=True, padding=True, padding_side="left")
        self.assertFalse(rows.mask.tolist()[1][0])
        self.assertEqual(apply([messages, messages[:1]], tokenize=False)[0], text)
        self.assertEqual(len(apply(messages, max_length=5)), 5)

    def test_variables_of_templates_are_keywords(self):
        with open(os.path.join(ROOT, "tests", "fixtures", "chat", "qwen3.jinja"), encoding="utf-8") as file:
            jinja = file.read()
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(os.path.join(FOLDER, "tokenizer.json"), os.path.join(folder, "tokenizer.json"))
            with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as file:
                file.write(jinja)
            tokenizer = Ebb.open_tokenizer(folder)
        for thinking, ending in ((True, "assistant\n"), (False, "<think>\n\n</think>\n\n")):
            text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False,
                                                 add_generation_prompt=True, enable_thinking=thinking)
            self.assertTrue(text.endswith(ending), text)

    def test_mistakes_are_named(self):
        with self.assertRaisesRegex(TypeError, "give the tokenizer too"):
            self.model.generate("x")
        with self.assertRaisesRegex(TypeError, "has no option 'max_token'"):
            self.model.generate([5], max_token=3)
        tokenizer, message = self.tokenizer, [{"role": "user", "content": "x"}]
        apply = tokenizer.apply_chat_template
        for make, kind, words in (
                (lambda: self.model.generate([5], max_new_tokens=3), TypeError, "'max_new_tokens': write max_tokens"),
                (lambda: self.model.generate([5], suppress_tokens="x"), TypeError,
                 "suppress_tokens is 'x': it must be a token or a list of tokens"),
                (lambda: self.model.generate([5], forced_eos_tokens=[2, 10**9]), Ebb.Error,
                 "forced token 1000000000 must be in [0, "),
                (lambda: self.model.generate([5], do_sample=True), TypeError, "write temperature=1 to sample"),
                (lambda: self.model.generate(), TypeError, "give one of prompts, messages and tokens"),
                (lambda: self.model.generate("x", messages=message), TypeError, "give one of prompts, messages and"),
                (lambda: self.model.generate(5), TypeError, "prompts is 5: it must be a text, a list of texts"),
                (lambda: self.model.generate([[1.5]]), TypeError, "prompt is [1.5]: it must be a text, a list of"),
                (lambda: self.model.generate(message), TypeError, "a conversation is given as messages="),
                (lambda: self.model.generate(messages=message), TypeError, "messages need the tokenizer"),
                (lambda: self.model.generate([5], max_tokens=1)[0], TypeError, "write made.texts[0] or"),
                (lambda: self.model.generate("x", tokenizer=tokenizer, stop_strings=[3]), TypeError,
                 "stop_strings is [3]: it must be a str or a list of str"),
                (lambda: self.model.generate("x", tokenizer=tokenizer, stop_tokens="x"), TypeError,
                 "stop_tokens is 'x': it must be a token or a list of tokens"),
                (lambda: self.model.generate([5], 3), TypeError, "on_token is 3: it must be a function of (row, token"),
                (lambda: apply("Hi"), TypeError, "messages is 'Hi': it must be a list of messages, as [{"),
                (lambda: apply([]), TypeError, "messages is []: it must be a list of messages"),
                (lambda: apply([{"role": "user"}]), TypeError, "messages[0] is {'role': 'user'}: it must be a dict"),
                (lambda: apply([{"role": "judge", "content": ""}]), Ebb.Error, "a role is system, user or assistant"),
                (lambda: apply([{**message[0], "tool_calls": [{}]}]), TypeError,
                 "messages[0]['tool_calls'] is [{}]: templates write role and content, and"),
                (lambda: apply([{**message[0], "weight": 0.5}]), TypeError, "messages[0]['weight'] is 0.5: templates"),
                (lambda: apply([{**message[0], "train": 0}]), TypeError, "messages[0]['train'] is 0: templates"),
                (lambda: apply(message, tools=[]), TypeError, "'tools': templates write no tools"),
                (lambda: apply(message, thinking=True), TypeError, "variables of templates are enable_thinking, date"),
                (lambda: apply(message, enable_thinking=1), TypeError, "enable_thinking is 1: it must be True or"),
                (lambda: Ebb.ByteTokenizer().apply_chat_template(message), Ebb.Error, "has no chat template")):
            with self.assertRaises(kind) as caught:
                make()
            self.assertIn(words, str(caught.exception))
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


class Interrupts(TestCase):
    """What the handler of a signal raises while C generates comes out of generate(), and nothing is left behind."""

    def setUp(self):
        self.model = Ebb.open_model(FOLDER)
        self.handler = signal.getsignal(signal.SIGINT)

    def tearDown(self):
        self.assertIs(signal.getsignal(signal.SIGINT), self.handler)
        self.assertEqual(Ebb.memory_stats()["cache"]["current"], 0)

    def interrupt(self, **keywords):
        """Generates many tokens, and sends SIGINT from another thread while generate() has the signals."""
        is_over = threading.Event()

        def send():
            while signal.getsignal(signal.SIGINT) is self.handler and not is_over.is_set():
                pass
            if not is_over.is_set():
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            self.model.generate([5], max_tokens=1000, slides=True, stop_tokens=[], **keywords)
        finally:
            is_over.set()
            thread.join()

    def test_ctrl_c_ends_generation(self):
        self.assertRaises(KeyboardInterrupt, self.interrupt)

    def test_ctrl_c_is_not_lost_on_its_way_into_a_callback(self):
        for _ in range(3):
            self.assertRaises(KeyboardInterrupt, self.interrupt, on_token=lambda *_: True)

    def test_ctrl_c_inside_a_callback_leaves_it_at_once(self):
        seen = []

        def take(*_):
            seen.append("before")
            os.kill(os.getpid(), signal.SIGINT)
            seen.append("behind")

        with self.assertRaises(KeyboardInterrupt):
            self.model.generate([5], max_tokens=20, on_token=take)
        self.assertEqual(seen, ["before"])

    def test_ctrl_c_inside_a_hook_ends_generation(self):
        calls = []

        def hook(*_):
            calls.append(len(calls))
            if len(calls) == 2:
                os.kill(os.getpid(), signal.SIGINT)

        self.model.norm.register_forward_hook(hook)
        with self.assertRaises(KeyboardInterrupt):
            self.model.generate([5], max_tokens=20)
        self.assertEqual(len(calls), 2)

    def test_a_handler_of_ones_own_runs_and_may_return(self):
        heard = []
        signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
        try:
            made = self.model.generate([5], max_tokens=4, stop_tokens=[],
                                       on_token=lambda *_: os.kill(os.getpid(), signal.SIGINT))
        finally:
            signal.signal(signal.SIGINT, self.handler)
        self.assertEqual((heard, made.ends), ([signal.SIGINT] * 4, ["length"]))

    def test_generation_inside_a_callback_is_left_too(self):
        def take(*_):
            self.model.generate([7], max_tokens=9, on_token=lambda *_: os.kill(os.getpid(), signal.SIGINT))

        with self.assertRaises(KeyboardInterrupt):
            self.model.generate([5], max_tokens=20, on_token=take)

    def test_a_handler_that_a_callback_sets_stays(self):
        def mine(*_):
            pass

        self.model.generate([5], max_tokens=1, on_token=lambda *_: signal.signal(signal.SIGINT, mine))
        self.assertIs(signal.signal(signal.SIGINT, self.handler), mine)

    def test_other_threads_generate(self):
        results = []
        thread = threading.Thread(target=lambda: results.append(self.model.generate([5], max_tokens=3, stop_tokens=[])))
        thread.start()
        thread.join()
        self.assertEqual(results[0].ends, ["length"])


if __name__ == "__main__":
    main()
