//! What a type is once serde has written it, read from its source.

use std::path::{Path, PathBuf};
use syn::{Attribute, Expr, Fields, GenericArgument, Item, Lit, Meta, PathArguments, Type, UseTree};

/// What a value looks like in JSON.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape {
    Integer,
    Number,
    Text,
    Boolean,
    /// Any JSON value.
    Anything,
    List(Box<Shape>),
    /// A list of so many.
    Tuple(Vec<Shape>),
    /// An object with any keys.
    Map(Box<Shape>),
    /// Or null.
    Optional(Box<Shape>),
    /// A type of ours, by its place in [`Shapes`].
    Named(usize),
}

#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub key: String,
    pub doc: String,
    pub shape: Shape,
    /// Whether the key is left out where there is no value.
    pub is_left_out: bool,
    /// Whether its keys stand among those of the type that has it.
    pub is_flat: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Variant {
    pub key: String,
    pub doc: String,
    pub fields: Vec<Field>,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Object(Vec<Field>),
    /// One of these words.
    Words(Vec<Variant>),
    /// An object whose key `tag` says what the others are; with `content`, what they are is under that key.
    Tagged {
        tag: String,
        content: Option<String>,
        variants: Vec<Variant>,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub name: String,
    pub doc: String,
    pub kind: Kind,
}

/// A type's source, before the types that it mentions are found.
struct Found {
    name: String,
    /// `["oomph_report", "json", "explain"]`.
    module: Vec<String>,
    item: Item,
    /// Names that its file imports, with the path to each.
    imports: std::rc::Rc<Vec<Vec<String>>>,
}

/// All types that are serialized.
pub(crate) struct Shapes {
    found: Vec<Found>,
}

impl Shapes {
    pub(crate) fn read(crates: &Path, names: &[&str]) -> Self {
        let mut found = Vec::new();
        for name in names {
            let source = crates.join(name).join("src");
            for file in rust_files(&source) {
                let module: Vec<String> = std::iter::once(name.replace('-', "_"))
                    .chain(
                        file.strip_prefix(&source)
                            .unwrap()
                            .with_extension("")
                            .iter()
                            .map(|part| part.to_str().unwrap().to_owned()),
                    )
                    .filter(|part| part != "mod" && part != "lib")
                    .collect();
                let parsed = syn::parse_file(&std::fs::read_to_string(&file).unwrap())
                    .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
                let imports = std::rc::Rc::new(imports(&parsed.items));
                for item in parsed.items {
                    let (name, attributes) = match &item {
                        Item::Struct(one) => (one.ident.to_string(), &one.attrs),
                        Item::Enum(one) => (one.ident.to_string(), &one.attrs),
                        _ => continue,
                    };
                    if derives_serialize(attributes) {
                        found.push(Found { name, module: module.clone(), item, imports: imports.clone() });
                    }
                }
            }
        }
        Self { found }
    }

    /// A type by enough of its path to be the only one: `json::explain::Recording`, `oomph_data::Profile`.
    pub(crate) fn find(&self, path: &str) -> usize {
        let parts: Vec<String> = path.split("::").map(str::to_owned).collect();
        let (name, modules) = parts.split_last().unwrap();
        let fits = |one: &Found| one.name == *name && modules.iter().all(|part| one.module.contains(part));
        self.only(path, |one| fits(one))
    }

    fn only(&self, what: &str, fits: impl Fn(&Found) -> bool) -> usize {
        let all: Vec<usize> = (0..self.found.len()).filter(|&index| fits(&self.found[index])).collect();
        match all[..] {
            [one] => one,
            [] => panic!("{what}: there is no such type that is serialized"),
            _ => panic!(
                "{what}: which of {:?}?",
                all.iter().map(|&one| &self.found[one].module).collect::<Vec<_>>()
            ),
        }
    }

    /// The type that a name means in the file of another: its own, or one that it imports.
    fn seen_from(&self, from: &Found, name: &str) -> usize {
        if let Some(own) = self.found.iter().position(|one| one.module == from.module && one.name == name) {
            return own;
        }
        let what = format!("{name}, in {}", from.module.join("::"));
        let path = from.imports.iter().find(|path| path.last().is_some_and(|last| last == name));
        let path = path.unwrap_or_else(|| panic!("{what}: not imported"));
        let relative = ["crate", "self", "super"];
        let is_ours = relative.contains(&path[0].as_str());
        let own_crate = &from.module[0];
        let of_crate = if is_ours { own_crate } else { &path[0] };
        let modules: Vec<&String> =
            path[..path.len() - 1].iter().filter(|part| !relative.contains(&part.as_str())).collect();
        let candidates: Vec<usize> = (0..self.found.len())
            .filter(|&index| self.found[index].name == name && self.found[index].module[0] == *of_crate)
            .collect();
        match candidates[..] {
            [one] => one,
            // A crate exports some from other modules than they are in: the path decides only where it must.
            _ => self.only(&what, |one| {
                one.name == name
                    && one.module[0] == *of_crate
                    && modules.iter().all(|part| one.module.contains(part))
            }),
        }
    }

    /// A type's name, with its file's before it: several verbs have a `Device`.
    pub(crate) fn label(&self, index: usize) -> String {
        let Found { name, module, .. } = &self.found[index];
        format!("{}.{name}", module.last().unwrap())
    }

    pub(crate) fn get(&self, index: usize) -> Named {
        let found = &self.found[index];
        let (attributes, kind) = match &found.item {
            Item::Struct(one) => {
                let rules = rules(&one.attrs, &found.name);
                (&one.attrs, Kind::Object(self.fields(found, &one.fields, rules.rename_all.as_deref())))
            }
            Item::Enum(one) => {
                let rules = rules(&one.attrs, &found.name);
                let variants = (one.variants.iter())
                    .map(|variant| Variant {
                        key: cased(&variant.ident.to_string(), rules.rename_all.as_deref()),
                        doc: doc(&variant.attrs),
                        fields: self.fields(found, &variant.fields, None),
                    })
                    .collect();
                let kind = match rules.tag {
                    Some(tag) => Kind::Tagged { tag, content: rules.content, variants },
                    None => Kind::Words(variants),
                };
                (&one.attrs, kind)
            }
            _ => unreachable!(),
        };
        if let Kind::Words(variants) = &kind {
            assert!(
                variants.iter().all(|one| one.fields.is_empty()),
                "{}: an enum with fields needs a tag",
                found.name
            );
        }
        Named { name: found.name.clone(), doc: doc(attributes), kind }
    }

    fn fields(&self, found: &Found, fields: &Fields, rename_all: Option<&str>) -> Vec<Field> {
        (fields.iter())
            .filter_map(|field| {
                let name = field.ident.as_ref().map_or_else(String::new, |name| name.to_string());
                let rules = rules(&field.attrs, &format!("{}.{name}", found.name));
                let key = rules.rename.unwrap_or_else(|| cased(&name, rename_all));
                let shape = self.shape(found, &field.ty);
                let (is_left_out, is_flat) = (rules.is_left_out, rules.is_flat);
                (!rules.is_skipped).then(|| Field {
                    key,
                    doc: doc(&field.attrs),
                    shape,
                    is_left_out,
                    is_flat,
                })
            })
            .collect()
    }

    fn shape(&self, found: &Found, kind: &Type) -> Shape {
        let path = match kind {
            Type::Reference(one) => return self.shape(found, &one.elem),
            Type::Slice(one) => return Shape::List(Box::new(self.shape(found, &one.elem))),
            Type::Tuple(one) => {
                return Shape::Tuple(one.elems.iter().map(|one| self.shape(found, one)).collect());
            }
            Type::Array(one) => {
                let Expr::Lit(length) = &one.len else { panic!("{}: an array's length", found.name) };
                let Lit::Int(length) = &length.lit else { panic!("{}: an array's length", found.name) };
                return Shape::Tuple(vec![self.shape(found, &one.elem); length.base10_parse().unwrap()]);
            }
            Type::Path(one) => &one.path,
            _ => panic!("{}: a type that is not understood", found.name),
        };
        let last = path.segments.last().unwrap();
        let arguments: Vec<Shape> = match &last.arguments {
            PathArguments::AngleBracketed(all) => (all.args.iter())
                .filter_map(|one| match one {
                    GenericArgument::Type(one) => Some(self.shape(found, one)),
                    _ => None,
                })
                .collect(),
            _ => Vec::new(),
        };
        let argument = || Box::new(arguments.last().unwrap().clone());
        match last.ident.to_string().as_str() {
            "u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "i64" => Shape::Integer,
            "f64" => Shape::Number,
            "bool" => Shape::Boolean,
            "str" | "String" | "char" => Shape::Text,
            "Value" => Shape::Anything,
            "Vec" => Shape::List(argument()),
            "Option" => Shape::Optional(argument()),
            "BTreeMap" | "Map" => Shape::Map(argument()),
            name => Shape::Named(self.seen_from(found, name)),
        }
    }
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push(path);
        }
    }
    all.sort();
    all
}

fn imports(items: &[Item]) -> Vec<Vec<String>> {
    fn add(tree: &UseTree, before: &[String], all: &mut Vec<Vec<String>>) {
        let with = |name: &syn::Ident| before.iter().cloned().chain([name.to_string()]).collect::<Vec<_>>();
        match tree {
            UseTree::Path(one) => add(&one.tree, &with(&one.ident), all),
            UseTree::Name(one) => all.push(with(&one.ident)),
            UseTree::Group(one) => one.items.iter().for_each(|tree| add(tree, before, all)),
            UseTree::Rename(_) | UseTree::Glob(_) => {}
        }
    }
    let mut all = Vec::new();
    for item in items {
        if let Item::Use(one) = item {
            add(&one.tree, &[], &mut all);
        }
    }
    all
}

fn derives_serialize(attributes: &[Attribute]) -> bool {
    let mut does = false;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("derive")) {
        attribute
            .parse_nested_meta(|meta| {
                does |= meta.path.is_ident("Serialize");
                Ok(())
            })
            .unwrap();
    }
    does
}

/// The attributes for serde.
#[derive(Default)]
struct Rules {
    rename: Option<String>,
    rename_all: Option<String>,
    tag: Option<String>,
    content: Option<String>,
    is_flat: bool,
    is_left_out: bool,
    is_skipped: bool,
}

fn rules(attributes: &[Attribute], whose: &str) -> Rules {
    let mut rules = Rules::default();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
        attribute
            .parse_nested_meta(|meta| {
                let name = meta.path.get_ident().unwrap().to_string();
                let value = match meta.value() {
                    Ok(value) => Some(value.parse::<syn::LitStr>()?.value()),
                    Err(_) => None,
                };
                match name.as_str() {
                    "rename" => rules.rename = value,
                    "rename_all" => rules.rename_all = value,
                    "tag" => rules.tag = value,
                    "content" => rules.content = value,
                    "flatten" => rules.is_flat = true,
                    "skip" => rules.is_skipped = true,
                    "skip_serializing_if" => rules.is_left_out = true,
                    // About reading.
                    "default" | "deny_unknown_fields" => {}
                    _ => panic!("{whose}: serde({name}) is not understood here"),
                }
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{whose}: {error}"));
    }
    rules
}

fn cased(name: &str, rule: Option<&str>) -> String {
    let apart = |by: char| {
        let mut text = String::new();
        for c in name.chars() {
            if c.is_uppercase() && !text.is_empty() {
                text.push(by);
            }
            text.extend(c.to_lowercase());
        }
        text
    };
    match rule {
        None => name.to_owned(),
        Some("snake_case") => apart('_'),
        Some("kebab-case") => apart('-'),
        Some(other) => panic!("{name}: rename_all = {other:?} is not understood here"),
    }
}

/// The comment on something, in one line; links to code become code.
fn doc(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(text) => match &text.lit {
                Lit::Str(text) => Some(text.value().trim().to_owned()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    });
    let text = lines.collect::<Vec<_>>().join(" ");
    text.replace("[`", "`").replace("`]", "`").replace("\\[", "[").replace("\\]", "]").trim().to_owned()
}
