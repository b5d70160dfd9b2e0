#!/usr/bin/env python3
"""The page of a memory timeline in a browser: it opens, its numbers are the report's, pointer and keys name tensors.

Each page gets a script that acts as a reader does and leaves what it found in the document, which headless Chromium
prints. EBB_LONG=1 scripts/install-packages --test installs Chromium.
"""
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = os.path.abspath(os.environ.get("EBB_BUILD_DIR", "build/release"))
CHROMIUM = shutil.which("chromium")
MODEL = ["--layers", "3", "--width", "64", "--heads", "2", "--context", "64", "--batch", "4", "--threads", "1"]
TWO_RUNS = """
import sys, gi
gi.require_version("Ebb", "1.0")
from gi.repository import Ebb
def record(name, wrap):
    Ebb.manual_seed(1)
    model = Ebb.Sequential(*(Ebb.TransformerBlock(64, 2, 0.1, True, True) for _ in range(3)))
    wrap(model)
    optimizer, x = Ebb.AdamW(model, 1e-3), Ebb.randn(4, 64, 64)
    for step in range(2):
        with Ebb.memory_timeline(name) as timeline:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return timeline
none = record("none", lambda model: None)
planned = record("planned", lambda model: Ebb.checkpoint_wrap_each(model, Ebb.TransformerBlock))
none.save(sys.argv[1], planned, budget=(none.get_peak_total() + planned.get_peak_total()) // 2)
"""
# What a reader does; `found` becomes the result.
LOOK = """
const found = {}, all = selector => [...document.querySelectorAll(selector)];
found.ready = document.body.dataset.ready;
found.error = document.body.dataset.error;
found.summary = getElement('summary').textContent;
found.runs = all('.run').map(run => ({name: run.querySelector('h2').textContent, peak: Number(run.dataset.peakBytes),
  purposes: JSON.parse(run.dataset.purposeBytes), text: run.querySelector('.numbers').textContent}));
found.title = getElement('moment-title').textContent;
found.rows = all('#holders tr').map(row => Number(row.dataset.bytes));
found.legend = all('#legend li').map(item => item.textContent);
found.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
found.page = getComputedStyle(document.body).backgroundColor;
found.beside = all('.run').map(run => Math.round(run.getBoundingClientRect().top));
// Every moment holds the same bytes by purpose and by module.
const add = walk => [...walk.bytes].reduce((sum, bytes) => sum + bytes, 0);
found.differences = 0;
for (const recording of recordings) {
  const byPurpose = new Walk(recording, new PurposeLayers(data.purposes));
  const byModule = new Walk(recording, new ModuleLayers(recordings));
  for (let moment = 0; moment <= recording.nChanges; moment++) {
    const bytes = recording.totals[moment];
    if (add(byPurpose.goTo(moment)) !== bytes || add(byModule.goTo(moment)) !== bytes)
      found.differences++;
  }
}
// The pointer over the middle of each block that a linear op of a forward made.
const chart = charts[0], {recording} = chart, box = chart.element.getBoundingClientRect();
const tip = () => getElement('tip').hidden ? null : [...getElement('tip').children].map(line => line.textContent);
found.tips = [];
const atPeak = new Walk(recording, shared.layers).goTo(recording.peakMoment), places = [];
atPeak.each((block, layer, below, bytes) => {
  if (block >= 0 && recording.text('op', block) === 'linear' && recording.blocks.phase[block] === 0)
    places.push({block, y: chart.yOf(below + bytes / 2)});
});
const column = chart.columns.indexOf(recording.peakMoment);
for (const {block, y} of places) {
  chart.element.dispatchEvent(new PointerEvent('pointermove', {pointerType: 'mouse', bubbles: true,
    clientX: box.left + chart.plot.x + (column + 0.5) / devicePixelRatio, clientY: box.top + y}));
  found.tips.push({module: recording.text('module', block), bytes: recording.blocks.bytes[block],
    shape: recording.text('shape', block), first: recording.launches[recording.first[block]],
    last: recording.launches[recording.last[block]], tip: tip()});
}
// Keys.
const press = key => chart.element.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true}));
press('Home');
found.home = [chart.cursor, getElement('moment-title').textContent];
press('ArrowRight');
found.right = chart.cursor;
press('ArrowUp');
found.chosen = chart.chosen !== null;
press('p');
found.peak = chart.cursor === recording.peakMoment;
// A drag enlarges, the button shows the whole again.
const drag = (type, x) => chart.element.dispatchEvent(new PointerEvent(type, {pointerType: 'mouse', bubbles: true,
  pointerId: 1, button: 0, clientX: box.left + chart.plot.x + x * chart.plot.width, clientY: box.top + 100}));
chart.element.setPointerCapture = () => {};
drag('pointerdown', 0.25); drag('pointermove', 0.75); drag('pointerup', 0.75);
found.view = [shared.view.from / getWhole(), shared.view.to / getWhole()];
getElement('whole').click();
found.whole = [shared.view.from, shared.view.to === getWhole()];
// The other stack and the other axis.
document.querySelector('input[value=module]').click();
if (!getElement('axis').hidden)
  document.querySelector('input[value=seconds]').click();
found.modules = all('#legend li').map(item => item.textContent);
found.axis = shared.axis;
// Something is drawn, over all of the height that the peak has.
const pixels = chart.canvas.getContext('2d').getImageData(0, 0, chart.canvas.width, chart.canvas.height).data;
found.colours = new Set(new Uint32Array(pixels.buffer)).size;
document.body.dataset.found = JSON.stringify(found);
"""


class MemoryTimelinePage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="ebb-memory-timeline-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        with open(cls.path("text.txt"), "w", encoding="utf-8") as text:
            text.writelines(f"Line {n} of {n * n}.\n" for n in range(300))

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder, name)

    def train(self, *words):
        """The report of a training, and its page."""
        program = os.path.join(BUILD, "examples", "train_gpt")
        subprocess.run([program, "--data", "text.txt", *MODEL, "--quiet", "--memory-timeline", "step.html", "--report",
                        "report.json", *words], cwd=self.folder, check=True, timeout=200)
        with open(self.path("report.json"), encoding="utf-8") as file:
            return json.load(file)

    def browse(self, page="step.html", size="1280,900", dark=False):
        """What the script found in a page; the browser may say nothing."""
        with open(self.path(page), encoding="utf-8") as file:
            text = file.read()
        self.assertNotRegex(text, r"https?:|//[a-z]+\.")  # nothing to load
        with open(self.path("look.html"), "w", encoding="utf-8") as file:
            file.write(text.replace("</body>", "<script>addEventListener('load', () => setTimeout(() => {\n"
                                    f"{LOOK}}}, 100))</script></body>"))
        done = subprocess.run(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--window-size={size}", "--no-first-run",
             "--virtual-time-budget=5000", "--enable-logging=stderr", f"--user-data-dir={self.path('browser')}",
             "--host-resolver-rules=MAP * ~NOTFOUND", f"--blink-settings=preferredColorScheme={0 if dark else 1}",
             "--dump-dom", f"file://{self.path('look.html')}"], capture_output=True, text=True, check=True, timeout=200)
        self.assertEqual([line for line in done.stderr.splitlines() if "CONSOLE" in line], [])
        match = re.search(r'data-found="([^"]*)"', done.stdout)
        self.assertIsNotNone(match, done.stdout[-2000:])
        found = json.loads(html.unescape(match.group(1)))
        self.assertEqual((found["ready"], found.get("error")), ("true", None))
        self.assertLessEqual(found["overflow"], 0)
        self.assertEqual(found["differences"], 0)
        self.assertGreater(found["colours"], 8)
        return found

    def check_report(self, timeline, found):
        run, = found["runs"]
        self.assertEqual(run["peak"], timeline["peak_bytes"])
        self.assertEqual(run["purposes"], list(timeline["purposes"].values()))
        self.assertIn(f"({timeline['peak_bytes']} bytes) on cpu, {timeline['launches']} operations", run["text"])
        self.assertIn(f"eak {timeline['peak_bytes'] / 2**20:.2f} MiB", found["summary"])
        self.assertEqual(found["title"], "the ten largest at the peak")
        self.assertEqual(found["rows"], [holder["bytes"] for holder in timeline["holders"]])

    def check_pointer(self, found):
        self.assertGreaterEqual(len(found["tips"]), 6)
        for block in found["tips"]:
            name, size, shape, maker, life = block["tip"]
            self.assertEqual(name, f"{block['module']}: linear")
            self.assertRegex(size, rf"^\d+\.\d\d MiB \({block['bytes']} bytes\), activations$")
            self.assertEqual(shape, block["shape"])
            self.assertEqual(maker, f"made by linear (forward) in {block['module']}")
            self.assertTrue(life.startswith(f"lives operations {block['first']} to {block['last']}"), life)

    def check_keys(self, found):
        self.assertEqual(found["home"], [0, "the ten largest at the cursor"])
        self.assertEqual((found["right"], found["chosen"], found["peak"]), (1, True, True))
        self.assertAlmostEqual(found["view"][0], 0.25, 2)
        self.assertAlmostEqual(found["view"][1], 0.75, 2)
        self.assertEqual(found["whole"], [0, True])

    def test_a_step(self):
        timeline = self.train("--steps", "3")["memory_timeline"]
        found = self.browse()
        self.check_report(timeline, found)
        self.check_pointer(found)
        self.check_keys(found)
        self.assertEqual(found["legend"][-3:], ["forward", "backward", "optimizer"])
        self.assertIn("h.0 to h.2", found["modules"])
        self.assertEqual(found["axis"], "seconds")

    def test_recomputes_on_a_dark_phone(self):
        timeline = self.train("--steps", "3", "--checkpoint", "full")["memory_timeline"]
        found = self.browse(size="390,844", dark=True)
        self.check_report(timeline, found)
        self.assertEqual(found["legend"][-4:], ["forward", "recompute", "backward", "optimizer"])
        light = self.browse(size="390,844")
        self.check_report(timeline, light)
        self.assertNotEqual(found["page"], light["page"])

    def test_a_dry_step(self):
        timeline = self.train("--estimate")["memory_timeline"]
        found = self.browse()
        self.check_report(timeline, found)
        self.check_pointer(found)
        self.assertIn(", predicted by a dry run", found["runs"][0]["text"])

    @unittest.skipUnless(os.path.exists(os.path.join(BUILD, "Ebb-1.0.typelib")), "there is no binding in the build")
    def test_two_runs_side_by_side(self):
        subprocess.run(["/usr/bin/python3", "-c", TWO_RUNS, self.path("two.html")], check=True, timeout=200)
        found = self.browse("two.html")
        none, planned = found["runs"]
        self.assertEqual((none["name"], planned["name"]), ("none", "planned"))
        self.assertLess(planned["peak"], none["peak"])
        self.assertIn(" for a budget of ", found["summary"])
        self.assertEqual(found["beside"][0], found["beside"][1])
        narrow = self.browse("two.html", size="390,844")
        self.assertLess(narrow["beside"][0], narrow["beside"][1])


if __name__ == "__main__":
    if not os.environ.get("EBB_LONG") or CHROMIUM is None:
        print("skipped:", "there is no chromium" if os.environ.get("EBB_LONG") else "EBB_LONG is not set")
        sys.exit(77)
    unittest.main()
