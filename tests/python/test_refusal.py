"""Guards what is said where an installed library does not take the virtual GPU: its name and version and what to install, not PyTorch's traceback."""

import re
import subprocess
import sys

import pytest

# The installed cuDNN, but for its version, and that it refuses every description of a device.
REFUSES = r"""
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

typedef void *descriptor;
static descriptor device;

static void *real(const char *name) { return dlsym(dlopen(getenv("REAL_CUDNN"), RTLD_LAZY), name); }

size_t cudnnGetVersion(void) { return 99900; }

int cudnnBackendCreateDescriptor(int kind, descriptor *place) {
    int status = ((int (*)(int, descriptor *))real(__func__))(kind, place);
    if (kind == 38) device = *place;
    return status;
}

int cudnnBackendFinalize(descriptor one) { return device && one == device ? 3000 : ((int (*)(descriptor))real(__func__))(one); }

int cudnnBackendDestroyDescriptor(descriptor one) { return ((int (*)(descriptor))real(__func__))(one); }

int cudnnBackendSetAttribute(descriptor one, int name, int kind, int64_t count, const void *values) {
    return ((int (*)(descriptor, int, int, int64_t, const void *))real(__func__))(one, name, kind, count, values);
}

int cudnnBackendGetAttribute(descriptor one, int name, int kind, int64_t wanted, int64_t *count, void *values) {
    return ((int (*)(descriptor, int, int, int64_t, int64_t *, void *))real(__func__))(one, name, kind, wanted, count, values);
}
"""

# The virtual GPU has not read yet which cuDNN there is.
PROGRAM = """
import os, re
card = os.environ["OOMPH_VIRTUAL_GPU"]
os.environ["REAL_CUDNN"] = re.search("cudnn=([^;]*)", card)[1]
os.environ["OOMPH_VIRTUAL_GPU"] = card.replace(os.environ["REAL_CUDNN"], {library!r})

import torch

model = torch.nn.Conv2d(64, 128, 1, stride={stride}, bias=False).cuda()
model(torch.ones(8, 64, 32, 32, device="cuda")).sum().backward()
print("it went on")
"""


@pytest.mark.parametrize(("stride", "goes_on"), [(2, False), (1, True)])
def test_a_cudnn_that_refuses_the_card_is_named(predict, tmp_path, stride, goes_on):
    """Of some convolutions PyTorch finds another engine, with another workspace."""
    source, library = tmp_path / "refuses.c", tmp_path / "libcudnn.so.9"
    source.write_text(REFUSES)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    (tmp_path / "train.py").write_text(PROGRAM.format(library=str(library), stride=stride))
    predicted = predict("train.py", cwd=tmp_path, python=sys.executable)
    assert predicted.code == 2 and predicted.reported is None
    *printed, error, empty, hint = predicted.err.splitlines()
    assert printed == (["it went on"] if goes_on else []), "no traceback stands before the error"
    assert re.fullmatch(r"error: train\.py: cuDNN 9\.99\.0 \(nvidia-cudnn-cu\d+\) is newer than oomph knows, and refuses its virtual GPU: .*", error), error
    assert empty == "" and re.fullmatch(r'hint: upgrade oomph, or pin .*: pip install "nvidia-cudnn-cu\d+==9\.[\d.]+"', hint), hint
