// What the tests in JavaScript share: checks that are all made, whichever fails, and tell what they found.
import System from 'system';

let failures = 0;

export function check(condition, message) {
    if (!condition) {
        printerr(`FAILED: ${message}`);
        failures++;
    }
}

// As JSON.
export function equal(a, b, message) {
    check(JSON.stringify(a) === JSON.stringify(b), `${message}: ${JSON.stringify(a)} is not ${JSON.stringify(b)}`);
}

// An error of a class, whose message has all of the words.
export function checkFailsWith(kind, fn, ...words) {
    let error = null;
    try {
        fn();
    } catch (thrown) {
        error = thrown;
    }
    if (!(error instanceof kind)) {
        check(false, `${error ?? 'no error'}, and not the ${kind.name} with ${words}`);
        return;
    }
    for (const word of words)
        check(error.message.includes(word), `"${error.message}" has no "${word}"`);
}

// Error of JavaScript or GLib.Error.
export const checkFails = (fn, ...words) => checkFailsWith(Object, fn, ...words);

// The end of a test.
export function finish() {
    System.exit(failures ? 1 : 0);
}
