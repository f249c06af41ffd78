//! The system calls that are refused.
//!
//! A list of what is refused instead of what is allowed: scientific packages use calls that nobody foresees. It is
//! closed upwards, so that calls newer than the list (and those of the x32 ABI, whose numbers are larger) do not exist
//! for a job. What is refused is either a way around another wall, or a large surface of the kernel that no program
//! of this kind needs.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, sock_filter,
};

/// The last call that is known here: `mseal`.
const LAST_KNOWN: u32 = 462;

/// Refused with `EPERM`.
const REFUSED: &[libc::c_long] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    // Mounts, namespaces, roots.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_acct,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    // Keys.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    // Programs in the kernel, counters, modules, the machine.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_personality,
    libc::SYS_vhangup,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_nfsservctl,
    libc::SYS_lookup_dcookie,
    // Memory that no limit counts, and placement of memory.
    libc::SYS_shmget,
    libc::SYS_msgget,
    libc::SYS_semget,
    libc::SYS_mq_open,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    // Sockets; a connected pair is all that is left.
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
];

/// Refused with `ENOSYS`, on which programs take another way.
const UNKNOWN: &[libc::c_long] = &[
    // Its flags cannot be looked at; the C library falls back to `clone`.
    libc::SYS_clone3,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_memfd_create,
    libc::SYS_memfd_secret,
];

/// The filters, in the order in which they are installed. `None` if the compiler of filters refused, which is a fault
/// of this list.
pub(crate) fn programs() -> Result<Vec<BpfProgram>, String> {
    let mut refused: BTreeMap<i64, Vec<SeccompRule>> = REFUSED.iter().map(|number| (*number, Vec::new())).collect();
    let mut namespaces = Vec::new();
    let flags = [
        libc::CLONE_NEWNS,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWCGROUP,
    ];
    for flag in flags {
        let flag = u64::from(flag.cast_unsigned());
        let condition = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag);
        let rule = condition.and_then(|condition| SeccompRule::new(vec![condition]));
        namespaces.push(rule.map_err(|error| error.to_string())?);
    }
    refused.insert(libc::SYS_clone, namespaces);
    let unknown = UNKNOWN.iter().map(|number| (*number, Vec::new())).collect();
    let mut closed = closed_upwards();
    closed.extend(compile(unknown, libc::ENOSYS)?);
    Ok(vec![closed, compile(refused, libc::EPERM)?])
}

fn compile(rules: BTreeMap<i64, Vec<SeccompRule>>, errno: i32) -> Result<BpfProgram, String> {
    let action = SeccompAction::Errno(errno.cast_unsigned());
    SeccompFilter::new(rules, SeccompAction::Allow, action, TargetArch::x86_64)
        .and_then(BpfProgram::try_from)
        .map_err(|error| error.to_string())
}

/// Numbers above the last known one do not exist. Goes before a program that checks the architecture.
fn closed_upwards() -> BpfProgram {
    let statement = |code: u32, k: u32| sock_filter { code: code as u16, jt: 0, jf: 0, k };
    vec![
        // The number is the first word of `struct seccomp_data`.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        sock_filter { code: (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16, jt: 0, jf: 1, k: LAST_KNOWN },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_compile_and_are_small() {
        let programs = programs().unwrap();
        assert_eq!(programs.len(), 2);
        assert!(programs.iter().all(|program| program.len() < 1000));
    }
}
