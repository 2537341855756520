"""A stub of NVIDIA's management library, for programs that ask it by pynvml or ctypes.

`build` compiles it into a folder, and `environment` is what a child process needs to find it there: the loader reads its path
once, before Python starts. What it answers is read from the environment each time it is asked, as a plain value for every device,
or per device as ``1=50,201=7``: GPUs are 1, 2... (``GPU-1``), the slices of GPU 2 are 201, 202... (``MIG-201``).

| variable | answer | when absent |
| --- | --- | --- |
| STUB_INIT | error code of nvmlInit | 0 |
| STUB_COUNT | number of GPUs | 2 |
| STUB_NAME | model | NVIDIA Stub |
| STUB_MIG | whether a GPU is in MIG mode | not supported |
| STUB_SLICES | slices of a GPU in MIG mode | 2 |
| STUB_PROFILE | name of a slice's profile | MIG 1g.18gb |
| STUB_MODE | compute mode: 2 prohibited, 3 exclusive | 0 |
| STUB_PIDS | processes that compute: ``12+13`` | none |
| STUB_MEMORY, STUB_MEMORY_USED | bytes | 16 GiB, 0 |
| STUB_UTILISATION | per cent | 0 |
| STUB_HANDLE, STUB_ASK, STUB_MEMORY_ERROR | error code: of the GPU as a whole, of the list of processes, of the memory | 0 |
| STUB_CALLS | file to which the name of every function that is called is appended | |
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

import pytest

_SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned gpu, memory; } utilisation_t;
enum { NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7 };

static void called(const char *name) {
    const char *path = getenv("STUB_CALLS");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) { fprintf(file, "%s\n", name); fclose(file); }
}
static const char *setting(const char *name, long of) {
    const char *text = getenv(name);
    if (!text || !strchr(text, '=')) return text;
    while (text) {
        char *end;
        if (strtol(text, &end, 10) == of && *end == '=') return end + 1;
        if ((text = strchr(text, ','))) text++;
    }
    return NULL;
}
static long long number(const char *name, long of, long long otherwise) {
    const char *text = setting(name, of);
    return text ? atoll(text) : otherwise;
}
static int words(char *into, unsigned size, const char *name, long of, const char *otherwise) {
    const char *text = setting(name, of);
    if (!text) text = otherwise;
    return snprintf(into, size, "%.*s", (int)strcspn(text, ","), text);
}

int nvmlInitWithFlags(unsigned flags) { called(__func__); return number("STUB_INIT", 0, 0); }
int nvmlInit_v2(void) { called(__func__); return number("STUB_INIT", 0, 0); }
int nvmlInit(void) { called(__func__); return number("STUB_INIT", 0, 0); }
int nvmlShutdown(void) { called(__func__); return 0; }
const char *nvmlErrorString(int code) { return "Some Error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { called(__func__); *count = number("STUB_COUNT", 0, 2); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    called(__func__);
    *handle = (void *)(long)(index + 1);
    return number("STUB_HANDLE", index + 1, 0);
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    called(__func__);
    long of = strncmp(uuid, "GPU-", 4) && strncmp(uuid, "MIG-", 4) ? 0 : atol(uuid + 4);
    if (of < 1 || (of < 100 ? of : of / 100) > number("STUB_COUNT", 0, 2)) return NOT_FOUND;
    *handle = (void *)of;
    return number("STUB_HANDLE", of, 0);
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    called(__func__);
    return snprintf(text, size, (long)handle > 100 ? "MIG-%ld" : "GPU-%ld", (long)handle) < 0;
}
int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    called(__func__);
    long of = (long)handle, gpu = of > 100 ? of / 100 : of;
    unsigned length = words(text, size, "STUB_NAME", gpu, "NVIDIA Stub");
    if (of > 100 && length + 1 < size) {
        text[length++] = ' ';
        words(text + length, size - length, "STUB_PROFILE", of, "MIG 1g.18gb");
    }
    return 0;
}
static unsigned long long total(void *handle) { return number("STUB_MEMORY", (long)handle, 1ll << 34); }
static unsigned long long used(void *handle) { return number("STUB_MEMORY_USED", (long)handle, 0); }
int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory) {
    called(__func__);
    memory->total = total(handle), memory->used = used(handle), memory->free = memory->total - memory->used;
    return number("STUB_MEMORY_ERROR", (long)handle, 0);
}
int nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2_t *memory) {
    called(__func__);
    memory->total = total(handle), memory->used = used(handle), memory->free = memory->total - memory->used;
    memory->reserved = 0;
    return number("STUB_MEMORY_ERROR", (long)handle, 0);
}
int nvmlDeviceGetUtilizationRates(void *handle, utilisation_t *rates) {
    called(__func__);
    rates->gpu = rates->memory = number("STUB_UTILISATION", (long)handle, 0);
    return 0;
}
int nvmlDeviceGetComputeMode(void *handle, unsigned *mode) {
    called(__func__);
    *mode = number("STUB_MODE", (long)handle, 0);
    return 0;
}
int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *then) {
    called(__func__);
    *now = *then = number("STUB_MIG", (long)handle, 0);
    return getenv("STUB_MIG") ? 0 : NOT_SUPPORTED;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) { called(__func__); *count = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **slice) {
    called(__func__);
    *slice = (void *)((long)handle * 100 + index + 1);
    return index < number("STUB_SLICES", (long)handle, 2) ? 0 : NOT_FOUND;
}
static int processes(void *handle, unsigned *count, process_t *found) {
    long code = number("STUB_ASK", (long)handle, 0);
    if (code) return code;
    const char *text = setting("STUB_PIDS", (long)handle);
    unsigned room = found ? *count : 0;
    *count = 0;
    while (text && *text && *text != ',') {
        char *end;
        unsigned pid = strtoul(text, &end, 10);
        if (*count < room) { memset(found + *count, 0, sizeof *found); found[*count].pid = pid; }
        ++*count;
        text = *end == '+' ? end + 1 : NULL;
    }
    return *count > room ? TOO_SMALL : 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, process_t *found) {
    called(__func__);
    return processes(handle, count, found);
}
int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, process_t *found) {
    called(__func__);
    return processes(handle, count, found);
}
"""


def build(folder: Path, *, without: Collection[str] = ()) -> Path:
    """Compile the stub into a folder, and return the folder; skips the test where there is no compiler.

    Args:
        folder: it must be there.
        without: functions that it lacks, as an older driver's library does.
    """
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc to build a stub of NVML with")
    source, library = folder / "stub.c", folder / "libnvidia-ml.so.1"
    source.write_text(_SOURCE)
    renamed = [f"-D{name}=lacking_{name}" for name in without]
    command = ["gcc", "-shared", "-fPIC", *renamed, "-Wl,-soname,libnvidia-ml.so.1", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Return the variables with which a child process finds the stub and this package."""
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(Path(__file__).parents[1])}
