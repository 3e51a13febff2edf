use super::*;

const HEAD: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n";
const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {clusterIP: None}\n";
const BROKEN: &str = "a: [\n";

fn read(before: &File, text: &str) -> File {
    before.read(&"a.yaml".into(), text, &RandomState::default())
}

fn problems(file: &File) -> Vec<String> {
    file.problems.iter().map(InputProblem::to_string).collect()
}

fn secret(name: &str) -> String {
    format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\n")
}

/// `s3cret` stands for what a Secret may hold, in every shape that a mistake gives it.
#[test]
fn no_shape_of_a_secret_is_told_of() {
    let long = "s3cret".repeat(60);
    for contents in [
        "stringData: {password:s3cret}",
        "stringData: {password:s3cret: }",
        "stringData: {\"password: s3cret\": [x]}",
        "stringData: {password.s3cret: 5}",
        "stringData: {\"\\\"s3cret\\\"\": {a: b}}",
        "stringData: {\"a\\ns3cret\": [x]}",
        "stringData: {a b s3cret: x}",
        "stringData: {password: [s3cret]}",
        "stringData: [password: s3cret]",
        "stringData: [\"password: s3cret\"]",
        "stringData:\n  password:s3cret",
        "stringData: {password:s3cret, password:s3cret}",
        "stringData: {\"a\\ns3cret at line b\": 1, \"a\\ns3cret at line b\": 1}",
        "stringData: {? [s3cret] : x}",
        "stringData: {? {a: s3cret} : x}",
        "stringData: {password: !s3cret x, a: *s3cret}",
        "stringData: {password: !!s3cret}",
        "stringData: {password: !s3cret!x y}",
        "stringData: {password: @s3cret}",
        "stringData: {password: %s3cret}",
        "stringData: {password: s3cret",
        "stringData: {password: \"s3cret}",
        "stringData: {password: \"\\s3cret\"}",
        "data: {password: s3cret!}",
        "data: {\"password: s3cret\": x}",
        "data: {\"password: s3cret\": YQ==}",
        "data: s3cret",
        "data: {password:s3cret: YQ==}",
        "binaryData: {password:s3cret: [x]}",
        "password:s3cret: x",
        "\"password: s3cret\": x",
        "type: [s3cret]",
        "type: {password:s3cret}",
        "immutable: s3cret",
        "metadata: {name: s, labels: {password:s3cret: a b}}",
        "metadata: {name: s, labels: {a: password=s3cret}}",
        "metadata: {name: s, annotations: {\"password: s3cret\": x}}",
        "metadata: {name: s, annotations: {password:s3cret: [x]}}",
        "metadata: {name: s, creationTimestamp: s3cret}",
        "metadata: {name: s, ownerReferences: [password:s3cret]}",
        "metadata: {name: s, password:s3cret: x}",
        "metadata: {name: [s3cret]}",
        "metadata: {name: {password:s3cret: 5}}",
        &format!("stringData: {{{long}: [x]}}"),
        &format!("data: {{{long}: YQ==}}"),
    ] {
        let metadata = if contents.starts_with("metadata") { "" } else { "metadata: {name: s}\n" };
        for kind in ["Secret", "ConfigMap"] {
            let text = format!("apiVersion: v1\nkind: {kind}\n{metadata}{contents}\n");
            let told = problems(&read(&File::default(), &text)).join("\n");
            let is_contents =
                kind == "Secret" || !contents.contains("metadata") && !contents.contains("immutable");
            assert!(!is_contents || !told.contains("s3cret"), "{kind} {contents}: {told}");
            assert!(kind == "ConfigMap" || !told.is_empty(), "{contents}");
        }
    }
}

#[test]
fn only_edited_documents_are_parsed_again() {
    let hasher = RandomState::default();
    let name = "a.yaml".into();
    let first = File::default().read(&name, &format!("{SERVICE}---\n{}", secret("a")), &hasher);
    let second = first.read(&name, &format!("# moved\n{SERVICE}---\n{}", secret("b")), &hasher);
    let key = first.objects.keys().find(|key| key.to_string() == "Service default/s").unwrap();
    assert!(second.objects[key].is_same(&second.objects[key]));
    let third = second.read(&name, &format!("# moved\n{SERVICE}---\n{}", secret("c")), &hasher);
    assert!(second.objects[key].is_same(&third.objects[key]));
    let names: Vec<_> = third.objects.keys().map(ToString::to_string).collect();
    assert_eq!(names, ["Service default/s", "Secret default/c"]);
}

#[test]
fn a_broken_document_keeps_what_the_file_lacks_now() {
    let first = read(&File::default(), &format!("{SERVICE}---\n{}", secret("a")));
    let second = read(&first, &format!("{BROKEN}---\n{}", secret("b")));
    let names: Vec<_> = second.objects.keys().map(ToString::to_string).collect();
    assert_eq!(names, ["Service default/s", "Secret default/a", "Secret default/b"]);
    let [problem] = problems(&second).try_into().unwrap();
    assert!(problem.starts_with("a.yaml:"), "{problem}");
    assert!(problem.ends_with("; its last good objects (2) stay in force"), "{problem}");
    let healed = read(&second, SERVICE);
    assert_eq!((healed.objects.len(), problems(&healed).len()), (1, 0));
}

#[test]
fn a_refused_object_keeps_its_last_good_version() {
    let port = |port: u32| format!("{HEAD}spec: {{ports: [{{port: {port}}}]}}\n");
    let refused = format!("{HEAD}spec: {{ports: [{{port: x}}]}}\n");
    let first = read(&File::default(), &refused);
    assert_eq!(first.objects.len(), 0);
    assert!(problems(&first)[0].ends_with("; it is not served"), "{:?}", problems(&first));
    let good = read(&first, &port(80));
    let second = read(&good, &refused);
    let (_, kept) = second.objects.first_key_value().unwrap();
    assert!(kept.is_same(good.objects.values().next().unwrap()));
    assert!(problems(&second)[0].ends_with("; its last good version stays in force"));
}

#[test]
fn a_refused_policy_closes_its_targets_unless_there_was_a_good_version() {
    let policy = |target: &str, deny: &str| {
        format!(
            "apiVersion: portcullis.dev/v1alpha1\nkind: TrafficPolicy\nmetadata: {{name: p}}\nspec:\n  \
             targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: {target}}}]\n  deny: {deny}\n"
        )
    };
    let targets = |file: &File| {
        let declaration = file.objects.values().next().unwrap();
        let object = declaration.object.to_json().unwrap();
        (declaration.object.refused().is_some(), object["spec"]["targetRefs"][0]["name"].clone())
    };
    let closing = "; its targets are closed until that is right";
    let first = read(&File::default(), &policy("a", "127.0.0.0/8"));
    assert_eq!(targets(&first), (true, "a".into()));
    assert!(problems(&first)[0].ends_with(closing), "{:?}", problems(&first));
    let moved = read(&first, &policy("b", "127.0.0.0/8"));
    assert_eq!(targets(&moved), (true, "b".into()), "it was no good version");
    let lost = read(&moved, &policy("{}", "127.0.0.0/8"));
    assert_eq!(targets(&lost), (true, "b".into()), "rather those of before than none");
    assert!(problems(&lost)[0].ends_with(closing), "{:?}", problems(&lost));
    let good = read(&lost, &policy("c", "[127.0.0.0/8]"));
    assert_eq!(targets(&good), (false, "c".into()));
    let kept = read(&good, &policy("d", "127.0.0.0/8"));
    assert_eq!(targets(&kept), (false, "c".into()));
    assert!(problems(&kept)[0].ends_with("; its last good version stays in force"));

    let twice = read(&File::default(), &format!("{}---\n{}", policy("a", "[]"), policy("b", "x")));
    assert_eq!(targets(&twice), (false, "a".into()));
    assert!(problems(&twice)[0].ends_with("; this definition is ignored"), "{:?}", problems(&twice));
    let unknown = read(&File::default(), &policy("{}", "127.0.0.0/8"));
    assert_eq!(unknown.objects.len(), 0);
    assert!(problems(&unknown)[0].ends_with("; it is not served"), "{:?}", problems(&unknown));
}

/// It goes with the name that cannot be, and so does what it closed.
#[test]
fn a_policy_that_is_renamed_to_what_no_name_can_be_closes_its_targets_until_that_is_right() {
    let policy = |name: &str| {
        format!(
            "apiVersion: portcullis.dev/v1alpha1\nkind: TrafficPolicy\nmetadata: {{name: {name}}}\nspec:\n  \
             targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: web}}]\n  deny: [127.0.0.0/8]\n"
        )
    };
    let refused =
        |file: &File| file.objects.values().map(|it| it.object.refused().is_some()).collect::<Vec<_>>();
    let good = read(&File::default(), &policy("good"));
    assert_eq!(refused(&good), [false]);
    let misnamed = read(&good, &policy("Good"));
    assert_eq!(refused(&misnamed), [true]);
    let [problem] = problems(&misnamed).try_into().unwrap();
    assert!(problem.starts_with("a.yaml:1: TrafficPolicy default/Good: metadata.name: Invalid"), "{problem}");
    assert!(problem.ends_with("; its targets are closed until that is right"), "{problem}");
    let both = read(&misnamed, &format!("{}---\n{}", policy("good"), policy("Good")));
    assert_eq!(refused(&both), [false, true], "neither is in the other's place");
    assert_eq!(refused(&read(&misnamed, &policy("good"))), [false]);
}

#[test]
fn the_first_of_two_definitions_in_a_file_wins() {
    let file = read(&File::default(), &format!("{SERVICE}---\n{SERVICE}"));
    assert_eq!(
        problems(&file),
        [
            "a.yaml:6: Service default/s: is defined in line 1 of this file already; this definition is ignored"
        ]
    );
}

#[test]
fn an_unreadable_file_keeps_everything() {
    let first = read(&File::default(), SERVICE);
    let second = first.unreadable(&"a.yaml".into(), "too big".to_owned());
    assert_eq!(second.objects.len(), 1);
    assert_eq!(problems(&second), ["a.yaml: too big; its last good objects (1) stay in force"]);
}
