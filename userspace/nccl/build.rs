//! Sets the shared library's soname, and keeps it loaded: NCCL unloads plugins while a thread of this one may
//! still close a job.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl-net-sumac.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
