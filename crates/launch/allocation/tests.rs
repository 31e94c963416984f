use super::*;

/// Finds the allocation of this environment; `file` is the text of any file that a variable names, if there is
/// one.
fn found_with(variables: &[(&str, &str)], file: Option<&str>) -> Result<Option<Allocation>, String> {
    let variable =
        |name: &str| variables.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_string());
    let file = |_: &str| file.map(String::from).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
    Allocation::within(&Surroundings { variable: &variable, file: &file }).map_err(|error| error.to_string())
}

fn told(variables: &[(&str, &str)]) -> String {
    found_with(variables, None).unwrap().unwrap().to_string()
}

fn told_with(variables: &[(&str, &str)], file: &str) -> String {
    found_with(variables, Some(file)).unwrap().unwrap().to_string()
}

/// The variables as salloc sets them, behind `more`.
fn salloc<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let own = [("SLURM_JOB_ID", "17"), ("SLURM_JOB_NODELIST", "n[1-2]"), ("SLURM_JOB_CPUS_PER_NODE", "8,4")];
    [more, &own].concat()
}

#[test]
fn slurm_gives_hosts_and_tasks() {
    let found = found_with(&salloc(&[("SLURM_TASKS_PER_NODE", "2(x2)")]), None).unwrap().unwrap();
    assert_eq!(found.to_string(), "Slurm's job 17: n1:2, n2:2");
    assert_eq!((found.manager().agent(), found.hosts().slots()), (AgentCommand::Srun, 4));
    let old = [("SLURM_JOBID", "3"), ("SLURM_NODELIST", "a,b"), ("SLURM_TASKS_PER_NODE", "2,1")];
    assert_eq!(told(&old), "Slurm's job 3: a:2, b:1");
    let both = [old[1], old[2], ("SLURM_JOB_NODELIST", "c,d")];
    assert_eq!(told(&both), "Slurm's job: c:2, d:1", "the newer name takes precedence");
    let twice = [("SLURM_JOB_NODELIST", "a,b,a"), ("SLURM_TASKS_PER_NODE", "2,1(x2)")];
    assert_eq!(told(&twice), "Slurm's job: a:3, b:1");
}

#[test]
fn without_tasks_it_goes_by_processors() {
    assert_eq!(told(&salloc(&[])), "Slurm's job 17: n1:8, n2:4");
    assert_eq!(told(&salloc(&[("SLURM_CPUS_PER_TASK", "3")])), "Slurm's job 17: n1:2, n2:1");
    assert_eq!(told(&salloc(&[("SLURM_CPUS_PER_TASK", "6")])), "Slurm's job 17: n1:1, n2:1");
}

#[test]
fn a_step_has_its_own_tasks_where_the_jobs_would_be() {
    let step = [
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NUM_TASKS", "1"),
        ("SLURM_PROCID", "0"),
        ("SLURM_STEP_TASKS_PER_NODE", "1"),
    ];
    let with = |tasks| [&step[..], &salloc(&[("SLURM_TASKS_PER_NODE", tasks)])].concat();
    assert_eq!(told(&with("1")), "Slurm's job 17: n1:8, n2:4");
    // The variables as after `srun --preserve-env`, by which salloc starts a shell on the first host.
    assert_eq!(told(&with("2(x2)")), "Slurm's job 17: n1:2, n2:2");
}

#[test]
fn a_step_of_several_tasks_would_start_the_job_several_times() {
    let tasks = ("SLURM_TASKS_PER_NODE", "2(x2)");
    for step in [&[("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_PROCID", "0")][..], &[("SLURM_PROCID", "3")]] {
        let step = [&[("SLURM_STEP_ID", "0")], step].concat();
        let said = found_with(&[step.clone(), salloc(&[tasks])].concat(), None).unwrap_err();
        assert!(
            said.starts_with(&format!("{}={}: deckrun is one of several", step[1].0, step[1].1)),
            "{said}"
        );
        assert!(said.contains("Start deckrun once") && said.contains("srun --mpi=pmi2 PROGRAM"), "{said}");
    }
    // A batch script has a process number without a step.
    assert!(found_with(&salloc(&[tasks, ("SLURM_PROCID", "0")]), None).is_ok());
    // Without a host nothing can be started twice.
    assert_eq!(found_with(&[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "4")], None), Ok(None));
}

#[test]
fn pbs_gives_a_line_for_each_slot() {
    let pbs = [("PBS_NODEFILE", "/spool/9"), ("PBS_JOBID", "9.head")];
    let found = found_with(&pbs, Some("b\na\n\nb\n a \nb\n")).unwrap().unwrap();
    assert_eq!(
        (found.to_string().as_str(), found.manager().agent()),
        ("PBS' job 9.head: b:3, a:2", AgentCommand::Ssh)
    );
}

#[test]
fn lsf_gives_names_or_counts_or_a_file() {
    let job = ("LSB_JOBID", "5");
    assert_eq!(told(&[job, ("LSB_HOSTS", "a a b")]), "LSF's job 5: a:2, b:1");
    assert_eq!(told(&[job, ("LSB_MCPU_HOSTS", "a 2 b 4 ")]), "LSF's job 5: a:2, b:4");
    assert_eq!(told_with(&[job, ("LSB_DJOB_HOSTFILE", "/f")], "a\nb\nb\n"), "LSF's job 5: a:1, b:2");
    let both = [("LSB_HOSTS", "c"), ("LSB_MCPU_HOSTS", "a 2"), ("LSB_DJOB_HOSTFILE", "/f")];
    assert_eq!(told_with(&both, "d"), "LSF's job: a:2", "the counts are never left out");
    assert_eq!(told_with(&[both[0], both[2]], "d"), "LSF's job: c:1");
}

#[test]
fn slurm_comes_first_then_pbs_and_empty_variables_are_none() {
    let (slurm, tasks) = (("SLURM_JOB_NODELIST", "s"), ("SLURM_TASKS_PER_NODE", "1"));
    let (pbs, lsf) = (("PBS_NODEFILE", "/f"), ("LSB_HOSTS", "l"));
    assert_eq!(told_with(&[slurm, tasks, pbs, lsf], "p"), "Slurm's job: s:1");
    assert_eq!(told_with(&[pbs, lsf, ("SLURM_JOB_NODELIST", "")], "p"), "PBS' job: p:1");
    assert_eq!(told(&[lsf, ("PBS_NODEFILE", "")]), "LSF's job: l:1");
    assert_eq!(found_with(&[("SLURM_JOB_ID", "4"), ("LSB_HOSTS", "")], None), Ok(None));
    assert_eq!(found_with(&[slurm, tasks, (ENV_RANK, "0")], None), Ok(None), "a rank has its host");
}

/// Variables, the text of the file that they name, and a part of the error that they cause.
type Wrong<'a> = (Vec<(&'a str, &'a str)>, Option<&'a str>, &'a str);

#[test]
fn errors_name_the_variable_its_value_what_is_wrong_and_what_to_do() {
    let list = |value| vec![("SLURM_JOB_NODELIST", value), ("SLURM_TASKS_PER_NODE", "1")];
    let long = format!("a[{}", "1,".repeat(200));
    let cases: [Wrong; 18] = [
        (list("n[1-"), None, "SLURM_JOB_NODELIST=n[1-: a bracket is not closed."),
        (list("n[1-99999]"), None, "SLURM_JOB_NODELIST=n[1-99999]: `n[1-99999]` makes more than 65536 hosts"),
        (list(&long), None, "1,1,\u{2026}: a bracket is not closed."),
        (
            list("-oProxyCommand=x"),
            None,
            "=-oProxyCommand=x: `-oProxyCommand=x`: a host's name must not begin with `-`.",
        ),
        (list("a\x1b[2J"), None, "SLURM_JOB_NODELIST=a\\u{1b}[2J: "),
        (
            vec![("SLURM_NODELIST", "a")],
            None,
            "SLURM_NODELIST=a: the ranks of each host are unknown: neither SLURM_TASKS_PER_NODE",
        ),
        (
            list("a,b"),
            None,
            "SLURM_TASKS_PER_NODE=1: its number of hosts is 1, that of SLURM_JOB_NODELIST=a,b is 2.",
        ),
        (
            salloc(&[("SLURM_TASKS_PER_NODE", "2(x")]),
            None,
            "SLURM_TASKS_PER_NODE=2(x: `2(x` is neither a number",
        ),
        (salloc(&[("SLURM_CPUS_PER_TASK", "many")]), None, "SLURM_CPUS_PER_TASK=many: this is no number."),
        (
            salloc(&[("SLURM_STEP_ID", "1"), ("SLURM_PROCID", "x")]),
            None,
            "SLURM_PROCID=x: this is no number.",
        ),
        (
            vec![("SLURM_JOB_NODELIST", "a"), ("SLURM_JOB_CPUS_PER_NODE", "0")],
            None,
            "SLURM_JOB_CPUS_PER_NODE=0: `0` is neither",
        ),
        (
            vec![("PBS_NODEFILE", "/gone")],
            None,
            "PBS_NODEFILE=/gone: the list of hosts, this file, cannot be read (entity not found).",
        ),
        (vec![("PBS_NODEFILE", "/f")], Some(" \n"), "PBS_NODEFILE=/f: no host is in it."),
        (vec![("PBS_NODEFILE", "/f")], Some("a b\n"), "PBS_NODEFILE=/f: `a b`: a host's name has letters"),
        (vec![("LSB_HOSTS", " ")], None, "LSB_HOSTS= : no host is in it."),
        (
            vec![("LSB_MCPU_HOSTS", "a 2 b")],
            None,
            "LSB_MCPU_HOSTS=a 2 b: the number of slots behind `b` is missing.",
        ),
        (vec![("LSB_MCPU_HOSTS", "a b")], None, "LSB_MCPU_HOSTS=a b: `b` behind `a` is no number of slots."),
        (vec![("LSB_DJOB_HOSTFILE", "/gone")], None, "LSB_DJOB_HOSTFILE=/gone: the list of hosts"),
    ];
    for (variables, file, wanted) in cases {
        let said = found_with(&variables, file).unwrap_err();
        assert!(said.contains(wanted), "{variables:?}: {said}");
        assert!(said.contains("--hosts") && said.contains("localhost:4"), "{said}");
    }
}

#[test]
fn this_host_is_the_one_that_slurm_says_or_that_has_its_name() {
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let at = |node| {
        let named =
            [("SLURM_JOB_NODELIST", "n[1-2]"), ("SLURM_TASKS_PER_NODE", "1(x2)"), ("SLURMD_NODENAME", node)];
        found_with(&named, None).unwrap().unwrap()
    };
    let (in_step, elsewhere) = (at("n2").is_here(), at("").is_here());
    assert!(in_step("n2") && !in_step("n1") && !elsewhere("n2"));
    let short = own.split('.').next().unwrap();
    assert!(elsewhere(&own) && elsewhere(&format!("{short}.cluster.example")));
    assert!(!elsewhere("192.0.2.77"));
}

/// A part of an allocation with more slots than a job has ranks can be used; all of its slots are too many.
#[test]
fn an_allocation_may_be_larger_than_a_job() {
    let large = [("SLURM_JOB_NODELIST", "n[0001-9000]"), ("SLURM_TASKS_PER_NODE", "65536(x9000)")];
    let found = found_with(&large, None).unwrap().unwrap();
    assert_eq!((found.hosts().len(), found.hosts().slots()), (9000, 65536 * 9000));
    assert!(found.to_string().ends_with("n0016:65536 and 8984 more"), "{found}");
    let shares = found.hosts().place(Some(4096), found.is_here()).unwrap();
    assert_eq!((shares.len(), shares[0].count), (1, 4096));
    assert!(matches!(
        found.hosts().place(None, found.is_here()),
        Err(crate::LaunchError::TooManyRanks { .. })
    ));
}
