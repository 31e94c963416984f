//! The registry may unload a provider while its threads run: the loader is told to keep it.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libudeck-dat.so.0");
}
