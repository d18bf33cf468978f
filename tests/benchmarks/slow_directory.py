"""What a journal costs on a file system where each operation takes a while, as on NFS.

    python tests/benchmarks/slow_directory.py [--steps 300] [--milliseconds 0 1 5 20]

A library that is loaded before libc makes every operation on files below the journal's directory take so long: open,
write, rename, link, unlink, mkdir, stat. NFS answers most writes from its cache, so this is worse than NFS. Needs Linux
and a C compiler. Printed for each latency: operations of the training process and of its training thread in a step, and
what the training thread waits a step.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
static char below[65536];
static long all, first;
long slow_all(void) { return all; }
long slow_first(void) { return first; }
static void wait_for(void) {
  __atomic_add_fetch(&all, 1, __ATOMIC_RELAXED);
  if (syscall(SYS_gettid) == getpid()) first++;
  usleep(atoi(getenv("SLOW_MICROSECONDS")));
}
static int is_slow(const char *path) {
  const char *root = getenv("SLOW_DIRECTORY");
  return root && path && strncmp(path, root, strlen(root)) == 0;
}
#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)
static int opened(int fd, const char *path) {
  if (fd >= 0 && fd < 65536) below[fd] = is_slow(path);
  return fd;
}
#define OPEN(name) int name(const char *path, int flags, ...) { \
  va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
  REAL(name); if (is_slow(path)) wait_for(); return opened(real(path, flags, mode), path); }
OPEN(open) OPEN(open64)
ssize_t write(int fd, const void *data, size_t count) {
  REAL(write); if (fd >= 0 && fd < 65536 && below[fd]) wait_for(); return real(fd, data, count); }
int rename(const char *from, const char *to) { REAL(rename); if (is_slow(to)) wait_for(); return real(from, to); }
int link(const char *from, const char *to) { REAL(link); if (is_slow(to)) wait_for(); return real(from, to); }
int unlink(const char *path) { REAL(unlink); if (is_slow(path)) wait_for(); return real(path); }
int mkdir(const char *path, mode_t mode) { REAL(mkdir); if (is_slow(path)) wait_for(); return real(path, mode); }
int stat(const char *path, struct stat *into) { REAL(stat); if (is_slow(path)) wait_for(); return real(path, into); }
int stat64(const char *path, struct stat64 *into) {
  REAL(stat64); if (is_slow(path)) wait_for(); return real(path, into); }
"""
WARM_UP = 20
SLEEP = 0.01


def train(steps: int) -> None:
    """A step that waits ten milliseconds for its device; prints what was operated, and what each step took besides."""
    import torch

    import mlflow_stability

    options = mlflow_stability.Options(journal_dir=os.environ["SLOW_DIRECTORY"])
    mlflow_stability.autolog(offline=True, silent=True, options=options)
    libc = ctypes.CDLL(None)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    took, before = [], (0, 0)
    for step in range(steps + WARM_UP):
        if step == WARM_UP:
            before = libc.slow_all(), libc.slow_first()
        began = time.perf_counter()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        took.append(time.perf_counter() - began)
        time.sleep(SLEEP)
    took = took[WARM_UP:]
    operations = (libc.slow_all() - before[0]) / steps, (libc.slow_first() - before[1]) / steps
    print(*operations, statistics.median(took), statistics.fmean(took), max(took))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--milliseconds", type=float, nargs="+", default=[0, 1, 5, 20])
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.train:
        train(asked.steps)
        return
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "slow.c"), Path(folder, "slow.so")
        source.write_text(SHIM)
        subprocess.run(["cc", "-w", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        print("| each operation | operations a step, of the training thread | a step takes: median, mean, longest |")
        print("| --- | --- | --- |")
        for number, milliseconds in enumerate(asked.milliseconds):
            place = Path(folder, str(number), "journals")
            place.parent.mkdir()
            environment = {
                "LD_PRELOAD": str(library),
                "SLOW_DIRECTORY": str(place),
                "SLOW_MICROSECONDS": str(int(1000 * milliseconds)),
                "OMP_NUM_THREADS": "1",
            }
            command = [sys.executable, __file__, "--train", "--steps", str(asked.steps)]
            done = subprocess.run(
                command, cwd=folder, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True
            )
            every, own, *times = map(float, done.stdout.split()[-5:])
            median, mean, longest = (each * 1e3 for each in times)
            print(
                f"| {milliseconds:g} ms | {every:.2f}, {own:.2f} | {median:.2f}, {mean:.2f}, {longest:.1f} ms |",
                flush=True,
            )


if __name__ == "__main__":
    main()
