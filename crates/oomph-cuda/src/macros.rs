//! Functions that are alike but for their names. Arguments that are not read need not be declared: C's callers clean up after themselves.

macro_rules! launches {
    ($($name:ident)*) => {$(
        /// A kernel that does nothing.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> std::ffi::c_int {
            $crate::queue::launch();
            $crate::state::SUCCESS
        }
    )*};
}

macro_rules! does_nothing {
    ($($name:ident)*) => {$(
        /// Succeeds; there is nothing to do.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> std::ffi::c_int {
            $crate::state::SUCCESS
        }
    )*};
}
