"""What the benchmarks ran on."""
import os
import platform
import subprocess

from .process import ROOT, run_process

FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


def read_processor():
    """The fields of the first processor in /proc/cpuinfo."""
    fields = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            for line in info:
                name, colon, value = line.partition(":")
                if not colon:
                    break
                fields[name.strip()] = value.strip()
    except OSError:
        pass
    return fields


def processor():
    fields = read_processor()
    if "model name" not in fields:
        return platform.machine()
    flags = " ".join(flag for flag in FLAGS if flag in fields.get("flags", "").split())
    return f"{fields['model name']}, family {fields['cpu family']} model {fields['model']}, {flags}"


def memory_bytes():
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def revision():
    """The tree's commit, with a plus if it was changed; empty outside a repository."""
    try:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True,
                                check=True).stdout.strip()
        status = subprocess.run(["git", "status", "--porcelain", "--untracked-files=no"], cwd=ROOT, capture_output=True,
                                text=True, check=True).stdout
        return commit + ("+" if status.strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def describe(threads, build, python):
    fields = read_processor()
    return {
        "processor": processor(),
        "family": int(fields.get("cpu family", 0)) if fields.get("vendor_id") == "AuthenticAMD" else 0,
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_bytes": memory_bytes(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}, {' '.join(platform.libc_ver())}",
        "ebb": run_process([os.path.join(build, "examples", "train_gpt"), "--version"], 1, "Ebb").split()[-1],
        "revision": revision(),
        "onednn": onednn_version(build),
        "torch": run_process([python, "-c", "import torch; print(torch.__version__)"], 1, "PyTorch").strip()
        if python else None,
    }


def onednn_version(build):
    """From the name of the library that Ebb is linked with."""
    linked = run_process(["ldd", os.path.join(build, "libebb-1.0.so")], 1, "ldd")
    for line in linked.splitlines():
        if "libdnnl" in line and "=>" in line:
            name = os.path.basename(os.path.realpath(line.split("=>")[1].split()[0]))
            return name.partition(".so.")[2]
    return "unknown"


def as_lines(machine):
    versions = f"Ebb {machine['ebb']}" + (f" ({machine['revision']})" if machine["revision"] else "")
    versions += f" with oneDNN {machine['onednn']}"
    if machine["torch"]:
        versions += f"; PyTorch {machine['torch']}"
    return [f"Machine: {machine['processor']}; {machine['threads']} threads on {machine['cores']} processors, "
            f"{machine['memory_bytes'] / 2**30:.0f} GiB; {machine['system']}",
            f"Versions: {versions}"]
