//! Whose code a file is: the user's own, or a library's.
//!
//! `oomph-record` compiles this file too, by its path: it may depend on nothing.

/// Whether a file belongs to a library or to Python itself, by its path.
pub fn is_library_file(file: &str) -> bool {
    const PARTS: [&str; 4] = ["site-packages", "dist-packages", "/lib/python3", "/torchinductor_"];
    // PyTorch built from source: its own folders, not everything that lies under a folder called torch.
    const TORCH: [&str; 12] = [
        "nn/",
        "optim/",
        "utils/",
        "autograd/",
        "cuda/",
        "amp/",
        "distributed/",
        "_dynamo/",
        "_inductor/",
        "_tensor",
        "functional.py",
        "_ops.py",
    ];
    let unified = file.replace('\\', "/");
    let file = unified.as_str();
    let in_torch = |rest: &str| TORCH.iter().any(|folder| rest.starts_with(folder));
    // Code that was made rather than written: frozen modules, generated functions, FX graphs.
    const MADE: [&str; 6] =
        ["<frozen", "<string>", "<eval_with_key", "<decorator-gen", "<torch_package", "<__array_function__"];
    MADE.iter().any(|prefix| file.starts_with(prefix))
        || PARTS.iter().any(|part| file.contains(part))
        // Windows keeps the standard library in Lib.
        || file.contains("/Lib/")
        || file.strip_prefix("torch/").is_some_and(in_torch)
        || file.match_indices("/torch/").any(|(at, part)| in_torch(&file[at + part.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_files_are_told_from_libraries() {
        let own = [
            "/home/user/project/train.py",
            "/home/user/torch/train.py",
            "/tmp/ipykernel_31337/1415926535.py",
            "<ipython-input-3-0123456789ab>",
            "<stdin>",
            "/content/notebook.py",
            "C:\\Users\\me\\train.py",
            "train.py",
        ];
        let library = [
            "/usr/lib/python3.12/site-packages/torch/nn/modules/linear.py",
            "/opt/pytorch/torch/nn/modules/linear.py",
            "torch/utils/checkpoint.py",
            "/usr/lib/python3.11/threading.py",
            "C:\\Python312\\Lib\\site-packages\\transformers\\trainer.py",
            "C:\\Python312\\Lib\\threading.py",
            "/tmp/torchinductor_me/ab/cab.py",
            "<frozen importlib._bootstrap>",
            "<string>",
        ];
        for file in own {
            assert!(!is_library_file(file), "{file} is the user's own");
        }
        for file in library {
            assert!(is_library_file(file), "{file} is a library's");
        }
    }
}
