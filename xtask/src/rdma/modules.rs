//! Kernel modules of a guest, and the order in which it loads them.

use std::collections::BTreeMap;

/// Modules that are loaded for their own sake: the RDMA device, the modules that make it usable by programs, the network
/// card under it, and the one that makes the card lose packets. A single guest has no card, and uses `dummy`.
pub const WANTED: &[&str] =
    &["virtio_pci", "virtio_net", "dummy", "crc32_generic", "ib_uverbs", "rdma_ucm", "rdma_rxe", "sch_netem"];

/// The files of these modules and of their dependencies, each behind its own dependencies, from depmod's output:
/// lines `kernel/a.ko: kernel/b.ko kernel/c.ko`, paths below the folder of the kernel's modules. A module that is built into the
/// kernel has no line, and is left out.
pub fn order<'a>(modules_dep: &'a str, wanted: &[&str]) -> Vec<&'a str> {
    let lines = modules_dep.lines().filter_map(|line| line.split_once(':'));
    let needs: BTreeMap<String, (&str, &str)> =
        lines.map(|(file, needs)| (name(file), (file, needs))).collect();
    let mut order = Vec::new();
    for (file, needs) in wanted.iter().filter_map(|name| needs.get(*name)) {
        // depmod names all dependencies, direct or not, the first to load last.
        let needed = needs.split_whitespace().rev();
        for file in needed.chain([*file]) {
            if !order.contains(&file) {
                order.push(file);
            }
        }
    }
    order
}

/// `kernel/drivers/net/virtio-net.ko.xz` is `virtio_net`.
fn name(file: &str) -> String {
    let last = file.rsplit('/').next().unwrap_or(file);
    last.split('.').next().unwrap_or(last).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "\
kernel/rxe/rdma_rxe.ko: kernel/core/ib_uverbs.ko kernel/core/ib_core.ko kernel/net/udp-tunnel.ko
kernel/core/ib_uverbs.ko: kernel/core/ib_core.ko
kernel/core/ib_core.ko:
kernel/net/udp-tunnel.ko:
kernel/net/virtio-net.ko.xz: kernel/net/failover.ko
kernel/net/failover.ko:
";

    #[test]
    fn a_module_comes_behind_what_it_needs_and_once() {
        assert_eq!(
            order(DEP, &["ib_uverbs", "rdma_rxe"]),
            [
                "kernel/core/ib_core.ko",
                "kernel/core/ib_uverbs.ko",
                "kernel/net/udp-tunnel.ko",
                "kernel/rxe/rdma_rxe.ko"
            ]
        );
    }

    #[test]
    fn dashes_and_compression_do_not_hide_a_module() {
        assert_eq!(order(DEP, &["virtio_net"]), ["kernel/net/failover.ko", "kernel/net/virtio-net.ko.xz"]);
    }

    #[test]
    fn what_is_built_in_is_left_out() {
        assert_eq!(order(DEP, &["virtio_pci"]), [""; 0]);
    }
}
