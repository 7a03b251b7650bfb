//! Raw bindings of the parts of SPDK's environment (`spdk/env.h`) and NVMe driver
//! (`spdk/nvme.h`) that millrace uses, made by bindgen from the headers of the SPDK that is linked.
//! No policy and no safe wrappers: those are in `millrace::storage::spdk`.
//!
//! Functions called `shim_*` are of `c/shim.c`: what Rust cannot call as it is.

#![allow(non_camel_case_types, non_upper_case_globals, non_snake_case, missing_docs)]
#![allow(clippy::all)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// Release of the SPDK that is linked, such as `26.05`.
pub const VERSION: &str = env!("SPDK_SYS_VERSION");

/// True where SPDK is linked as shared libraries.
pub const SHARED: bool = cfg!(spdk_shared);

/// True where this SPDK has the NVMe/RDMA transport.
pub const HAS_RDMA: bool = cfg!(spdk_rdma);

/// True where this SPDK has the vfio-user transport.
pub const HAS_VFIO_USER: bool = cfg!(spdk_vfio_user);
