//! `.npy`: a header, and the elements as bytes.

use super::npy_header::{Header, write_header};
use super::{Array, Dense};
use crate::DataError;
use crate::source::{Sequential, Source};
use std::io::{self, Write};

/// Opens a `.npy` file. Only its header is read.
pub(super) fn open(source: Source) -> Result<Array, DataError> {
    let location = source.location().to_owned();
    let header = Header::read(&mut Sequential::new(source.clone(), 0, 4096), &location)?;
    Array::of_file(source, header)
}

/// Writes an array as a `.npy` file that NumPy maps into memory: the elements begin at a multiple of 64 bytes.
pub fn write_npy(out: &mut impl Write, array: &Dense) -> io::Result<()> {
    write_header(out, &array.values.dtype, array.order, &array.shape)?;
    out.write_all(array.values.bytes.as_slice())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrays::Order;
    use crate::arrays::npy_header::MAGIC;
    use crate::source::memory;
    use proptest::prelude::*;

    fn file(version: u8, header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([version, 0]);
        match version {
            1 => bytes.extend((header.len() as u16).to_le_bytes()),
            _ => bytes.extend((header.len() as u32).to_le_bytes()),
        }
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    fn refused(header: &str, data: &[u8]) -> String {
        match open(memory("a.npy", file(1, header, data))) {
            Ok(_) => panic!("{header} was accepted"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn all_versions_and_manners_of_writing_are_read() {
        for version in [1, 2, 3] {
            for header in [
                "{'descr': '<i2', 'fortran_order': False, 'shape': (2,), }\n",
                "{\"shape\":(2L,),\n\"descr\":'<i2','fortran_order' : False}",
            ] {
                let array = open(memory("a.npy", file(version, header, &[1, 0, 2, 0]))).unwrap();
                assert_eq!((array.shape(), array.dtype().name().as_str()), (&[2][..], "int16"));
            }
        }
        let scalar =
            open(memory("a.npy", file(1, "{'descr': '<f8', 'fortran_order': True, 'shape': (), }", &[0; 8])))
                .unwrap();
        assert_eq!((scalar.shape().len(), scalar.order()), (0, Order::C));
    }

    #[test]
    fn hostile_headers_are_refused_in_words() {
        for (header, data, words) in [
            ("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", &[0; 8][..], "run code"),
            ("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,), }", &[0; 8], "structured"),
            ("{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }", &[0; 8], "12 bytes"),
            (
                "{'descr': '<i8', 'fortran_order': False, 'shape': (4611686018427387904, 4611686018427387904), }",
                &[0; 8],
                "more than",
            ),
            (
                "{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999999999999,), }",
                &[0; 8],
                "64 bits",
            ),
            ("{'descr': '<i8', 'fortran_order': False, 'shape': (-1,), }", &[0; 8], "64 bits"),
            ("{'descr': '<i8', 'fortran_order': False, 'shape': (1), }", &[0; 8], "tuple"),
            ("{'descr': '<i8', 'fortran_order': 1, 'shape': (1,), }", &[0; 8], "True nor False"),
            ("{'descr': '<i8', 'shape': (1,), }", &[0; 8], "does not say"),
            ("{'descr': '<i8', 'descr': '<i8', 'shape': (1,), }", &[0; 8], "twice"),
            ("{'descr': '<i8', 'fortran_order': False, 'shape': (1,), 'x': '', }", &[0; 8], "key"),
            ("{'descr': '<i8', 'fortran_order': False, 'shape': (1,)} + 1", &[0; 8], "goes on"),
            ("__import__('os').system('true')", &[], "lacks"),
            ("{'descr': '<i8", &[], "without an end"),
            ("", &[], "lacks"),
        ] {
            let error = refused(header, data);
            assert!(error.starts_with("a.npy: ") && error.contains(words), "{header}: {error}");
        }
        let many = format!("{{'descr': '<i8', 'fortran_order': False, 'shape': ({}), }}", "1, ".repeat(65));
        assert!(refused(&many, &[0; 8]).contains("65 dimensions"));
    }

    #[test]
    fn a_long_header_is_not_believed() {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([2, 0, 255, 255, 255, 255]);
        assert!(open(memory("a.npy", bytes)).map(|_| ()).unwrap_err().to_string().contains("4294967295"));
    }

    proptest! {
        #[test]
        fn damage_never_panics(at in 0usize..200, with in any::<u8>(), cut in 0usize..200) {
            let mut bytes = file(1, "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }\n", &[7; 12]);
            let length = bytes.len();
            bytes[at % length] ^= with;
            bytes.truncate(length - cut % length);
            if let Ok(array) = open(memory("a.npy", bytes)) {
                let _ = crate::arrays::shrink_array(&array, &crate::arrays::ShrinkOptions::default(), &crate::Unobserved);
            }
        }
    }
}
