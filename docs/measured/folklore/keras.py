"""TensorFlow's counterparts. On the CPU they show what the structure of a program does; what a GPU would hold is then not measured."""

import gc
import os

from folklore.articles import example, run
from folklore.measure import GIB, used_by_nvml
from folklore.tip import NotHere, tip

GROUP = "TensorFlow"
# What the example below is made to report: weak references to what it made.
SEEN: list = []


@tip(
    group=GROUP,
    says="*Increase CUDA GPU memory*, 2: `del loss` and `del gradients` at the end of `train_step`",
    done=f"{example('increase_2_tensorflow')}, as written, with and without the two lines, on the CPU: structure only. Weak references show whether losses and gradients are alive after `train_step` has returned.",
    shows="alive afterwards: {written_alive:d} of {written_seen:d} with `del`, {plain_alive:d} of {plain_seen:d} without",
    verdict="does nothing",
    holds=lambda n: n["written_seen"] == n["plain_seen"] == 50 and n["written_alive"] == n["plain_alive"] == 0,
    why="They are names of the function and end with it, one line later. Nothing happens in between.",
    oomph="Nothing: oomph looks into PyTorch.",
    needs="tensorflow",
)
def increase_2_tensorflow():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    watched = "optimizer.apply_gradients(zip(gradients, model.trainable_variables))"
    deleted = "    del loss # delete unused tensors\n    del gradients\n"
    numbers = {}
    for how in ("written", "plain"):

        def change(text, how=how):
            if watched not in text or deleted not in text:
                raise ValueError("the example has changed")
            text = text.replace(watched, watched + "\n    SEEN.extend(weakref.ref(one) for one in (loss, *gradients))")
            return "import weakref\nfrom folklore.keras import SEEN\n" + (text if how == "written" else text.replace(deleted, ""))

        SEEN.clear()
        gc.disable()
        run("increase_2_tensorflow", change)
        numbers |= {f"{how}_seen": len(SEEN), f"{how}_alive": sum(one() is not None for one in SEEN)}
        gc.enable()
    return numbers


@tip(
    group=GROUP,
    says="`set_memory_growth(True)` makes TensorFlow need less",
    done="A product of two small matrices, without and with memory growth; what the card says is in use.",
    shows="in use on top {all} and {growth}",
    verdict="true, but",
    holds=lambda n: n["growth"] < GIB < n["all"],
    why="Its documentation says: TensorFlow takes nearly the whole card when it starts; with memory growth it takes what it needs, and gives none back; set it before the GPU is first used.",
    oomph="`oomph top`; `oomph run --budget`.",
    needs="tensorflow",
    settings={"all": {}, "growth": {}},
)
def tensorflow_memory_growth(how):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    before = used_by_nvml()
    import tensorflow

    cards = tensorflow.config.list_physical_devices("GPU")
    if before is None or not cards:
        raise NotHere("TensorFlow sees no GPU here; what is said is from its documentation")
    if how == "growth":
        tensorflow.config.experimental.set_memory_growth(cards[0], True)
    a = tensorflow.random.normal((256, 256))
    (a @ a).numpy()
    return {"": used_by_nvml() - before}
