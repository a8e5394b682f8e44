"""Made-up data in the formats that the scripts of the suite read: the shapes and numbers of classes of the real data, random
contents, few samples. Every number is drawn from a fixed seed, so that two machines have the same.
"""

import os
import pickle
import struct

import numpy


def fresh(*names):
    """The folder of that name, made where it is not there."""
    folder = os.path.join(*names)
    os.makedirs(folder, exist_ok=True)
    return folder


def idx(path, array):
    """A file as MNIST's: its magic number says the type and the dimensions."""
    with open(path, "wb") as file:
        file.write(struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape))
        file.write(array.tobytes())


def mnist(folder, random):
    for part, count in (("train", 2560), ("t10k", 1000)):
        idx(f"{folder}/{part}-images-idx3-ubyte", random.integers(0, 256, (count, 28, 28), numpy.uint8))
        idx(f"{folder}/{part}-labels-idx1-ubyte", (numpy.arange(count) % 10).astype(numpy.uint8))


def dump(path, value):
    with open(path, "wb") as file:
        pickle.dump(value, file)


def pictures(random, count):
    return random.integers(0, 256, (count, 3072), numpy.uint8)


def cifar(root, random, train, test):
    folder = fresh(root, "cifar-10-batches-py")
    for part in range(1, 6):
        count = train // 5
        dump(f"{folder}/data_batch_{part}", {"data": pictures(random, count), "labels": [n % 10 for n in range(count)]})
    dump(f"{folder}/test_batch", {"data": pictures(random, test), "labels": [n % 10 for n in range(test)]})
    dump(f"{folder}/batches.meta", {"label_names": [f"class {n}" for n in range(10)]})
    folder = fresh(root, "cifar-100-python")
    for part, count in (("train", train), ("test", test)):
        labels = [n % 100 for n in range(count)]
        dump(f"{folder}/{part}", {"data": pictures(random, count), "fine_labels": labels})
    dump(f"{folder}/meta", {"fine_label_names": [f"class {n}" for n in range(100)]})


def images(root, random):
    """Photographs in folders by class, of several sizes, as ImageNet's are."""
    from PIL import Image

    for part, count in (("train", 32), ("val", 12)):
        for kind in ("ant", "bee", "cat", "dog", "elk", "fox"):
            folder = fresh(root, part, kind)
            for number in range(count):
                width, height = random.integers(256, 400, 2)
                small = Image.fromarray(random.integers(0, 256, (16, 16, 3), numpy.uint8))
                small.resize((int(width), int(height))).save(f"{folder}/{number}.jpg")


def words(root, random):
    """Text of 6,000 different words in lines of different lengths, in the files of WikiText and of Penn Treebank."""
    vocabulary = numpy.array([f"word{number}" for number in range(6000)])
    for part, count in (("train", 60000), ("valid", 6000), ("test", 6000)):
        text = numpy.concatenate([vocabulary, vocabulary[random.zipf(1.3, count) % 6000]]) if part == "train" else vocabulary[random.zipf(1.3, count) % 6000]
        lines, at = [], 0
        while at < len(text):
            length = int(random.integers(5, 40))
            lines.append(" ".join(text[at : at + length]))
            at += length
        with open(f"{root}/{part}.txt", "w") as file:
            file.write("\n".join(lines) + "\n")


def characters(root, random):
    """Tiny Shakespeare as nanoGPT prepares it: 65 characters as 16-bit numbers; and as text."""
    alphabet = "\n !$&',-.3:;?" + "".join(chr(code) for code in range(65, 91)) + "".join(chr(code) for code in range(97, 123))
    assert len(alphabet) == 65
    for part, count in (("train", 200000), ("val", 20000)):
        random.integers(0, 65, count).astype(numpy.uint16).tofile(f"{root}/{part}.bin")
    there = dict(enumerate(alphabet))
    dump(f"{root}/meta.pkl", {"vocab_size": 65, "itos": there, "stoi": {letter: code for code, letter in there.items()}})
    with open(f"{root}/input.txt", "w") as file:
        file.write("".join(alphabet[code] for code in random.integers(0, 65, 60000)))


def cora(root, random):
    """A graph with Cora's numbers: 2,708 papers of seven kinds, 1,433 words, 5,429 citations."""
    kinds = ["Case_Based", "Genetic_Algorithms", "Neural_Networks", "Probabilistic_Methods", "Reinforcement_Learning"]
    kinds += ["Rule_Learning", "Theory"]
    with open(f"{root}/cora.content", "w") as file:
        for paper in range(2708):
            row = (random.random(1433) < 0.0127).astype(int)
            file.write("\t".join([str(paper), *map(str, row), kinds[paper % 7]]) + "\n")
    with open(f"{root}/cora.cites", "w") as file:
        for cited, citing in random.integers(0, 2708, (5429, 2)):
            file.write(f"{cited}\t{citing}\n")


def weights(root):
    """Checkpoints that torchvision would download: its own random weights under their names."""
    import torch
    import torchvision

    torch.manual_seed(0)
    for name, model in (("vgg16-397923af.pth", "vgg16"), ("vgg19-dcbb9e9d.pth", "vgg19")):
        if not os.path.exists(f"{root}/{name}"):
            torch.save(getattr(torchvision.models, model)(weights=None).state_dict(), f"{root}/{name}")


def make(folder):
    random = numpy.random.default_rng(20)
    for name in ("MNIST", "FashionMNIST"):
        mnist(fresh(folder, "few", name, "raw"), random)
    cifar(fresh(folder, "few"), random, 2560, 1000)
    cifar(fresh(folder, "all"), random, 50000, 10000)
    images(fresh(folder, "few", "images"), random)
    words(fresh(folder, "few", "words"), random)
    characters(fresh(folder, "few", "characters"), random)
    cora(fresh(folder, "few", "cora"), random)
    weights(fresh(folder, "torch", "hub", "checkpoints"))
