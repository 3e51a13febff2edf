// Command backport makes a copy of a release of the Gateway API and of its conformance suite that
// an older Go than theirs compiles. Go 1.27 lets composite literals name fields of embedded
// structs; here they are written out as before. The suite's backends are those of an older
// release, of which the test cluster has the image. Nothing else is changed, and nothing of it is
// kept in this repository: the sources are modules, checked by Go against the checksum database.
//
//	go run . -version v1.7.0 -backends v1.6.3 -go 1.26.0 -to DIRECTORY
package main

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	api   = "sigs.k8s.io/gateway-api"
	suite = api + "/conformance"
	meta  = "k8s.io/apimachinery/pkg/apis/meta/v1"
	core  = "k8s.io/api/core/v1"

	// The backends were part of the suite, and have a module of their own since v1.7.
	images   = "sigs.k8s.io/gateway-api-conformance-images"
	backends = "echo-basic/"
)

// images in manifests, of the suite and of the backends.
var (
	image      = regexp.MustCompile(`registry\.k8s\.io/gateway-api/conformance/echo-basic:\S+`)
	olderImage = regexp.MustCompile(`registry\.k8s\.io/gateway-api/echo-basic:\S+`)
)

// ofMeta are the fields, of structs that objects embed, which the suite sets.
var ofMeta = map[string][]string{
	"ObjectMeta": {"Name", "Namespace", "Labels", "Annotations", "Generation", "Finalizers", "OwnerReferences"},
	"TypeMeta":   {"Kind", "APIVersion"},
}

// ofCore are the objects of Kubernetes itself that the suite makes.
var ofCore = []string{"ConfigMap", "Namespace", "Pod", "Secret", "Service"}

// A structType is the declaration of a struct, as far as it matters here.
type structType struct {
	fields   []string
	embedded []embedded
}

type embedded struct{ path, name string }

// structs are those of the API and the suite, by package and name.
type structs map[string]map[string]structType

func main() {
	version := flag.String("version", "", "release, v1.7.0 for example")
	older := flag.String("backends", "", "release of the suite whose backends are used")
	language := flag.String("go", "", "version of Go that is to compile it")
	place := flag.String("to", "", "directory for the copy, made anew")
	flag.Parse()
	if err := run(*version, *older, *language, *place); err != nil {
		fmt.Fprintln(os.Stderr, "backport:", err)
		os.Exit(1)
	}
}

func run(version, older, language, place string) error {
	if err := os.RemoveAll(place); err != nil {
		return err
	}
	// The suite's go.mod looks for the API in the directory above.
	for module, to := range map[string]string{api: place, suite: filepath.Join(place, "conformance")} {
		archive, err := download(module, version)
		if err != nil {
			return err
		}
		if err := unpack(archive, module, version, "", to); err != nil {
			return err
		}
		edit := exec.Command("go", "mod", "edit", "-go="+language, "-toolchain=none", "-droprequire="+images, filepath.Join(to, "go.mod"))
		if output, err := edit.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", module, err, output)
		}
	}
	// It would join modules that are not here.
	if err := os.Remove(filepath.Join(place, "go.work")); err != nil && !os.IsNotExist(err) {
		return err
	}
	if err := useBackends(older, filepath.Join(place, "conformance")); err != nil {
		return err
	}
	known := structs{core: {}}
	for _, kind := range ofCore {
		known[core][kind] = structType{embedded: []embedded{{meta, "ObjectMeta"}}}
	}
	err := filepath.WalkDir(place, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		return known.read(importPath(place, path), path)
	})
	if err != nil {
		return err
	}
	return filepath.WalkDir(place, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		return known.rewrite(path, importPath(place, filepath.Dir(path)))
	})
}

func importPath(place, directory string) string {
	relative, err := filepath.Rel(place, directory)
	if err != nil || relative == "." {
		return api
	}
	return api + "/" + filepath.ToSlash(relative)
}

// download returns the archive of a module, which Go has compared with the checksum database.
// That it refuses to unpack one that asks for a newer Go is no matter.
func download(module, version string) (string, error) {
	output, failure := exec.Command("go", "mod", "download", "-json", module+"@"+version).Output()
	var downloaded struct{ Zip, Sum, Error string }
	if err := json.Unmarshal(output, &downloaded); err != nil {
		return "", fmt.Errorf("go mod download %s@%s: %w", module, version, failure)
	}
	if downloaded.Zip == "" || downloaded.Sum == "" {
		return "", fmt.Errorf("go mod download %s@%s: %s", module, version, downloaded.Error)
	}
	return downloaded.Zip, nil
}

// unpack writes the files of a module's archive, whose names begin with module and version, that
// are in a folder.
func unpack(archive, module, version, folder, to string) error {
	reader, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer reader.Close()
	for _, file := range reader.File {
		relative, ok := strings.CutPrefix(file.Name, module+"@"+version+"/")
		if !ok || !filepath.IsLocal(relative) {
			return fmt.Errorf("%s has a file %s", archive, file.Name)
		}
		if !strings.HasPrefix(relative, folder) {
			continue
		}
		content, err := fs.ReadFile(reader, file.Name)
		if err != nil {
			return err
		}
		target := filepath.Join(to, relative)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(target, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// useBackends puts the backends of an older release in place of the suite's own.
func useBackends(version, place string) error {
	archive, err := download(suite, version)
	if err != nil {
		return err
	}
	if err := unpack(archive, suite, version, backends, place); err != nil {
		return err
	}
	tag, err := newestImage(archive)
	if err != nil {
		return err
	}
	return filepath.WalkDir(place, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var now []byte
		switch filepath.Ext(path) {
		case ".go":
			now = bytes.ReplaceAll(content, []byte(images+"/"+backends), []byte(suite+"/"+backends))
		case ".yaml":
			now = image.ReplaceAll(content, tag)
		}
		if now == nil || bytes.Equal(now, content) {
			return nil
		}
		return os.WriteFile(path, now, 0o644)
	})
}

// newestImage finds the last tag of the backends' image in the manifests of their release.
func newestImage(archive string) ([]byte, error) {
	reader, err := zip.OpenReader(archive)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	var newest []byte
	for _, file := range reader.File {
		if filepath.Ext(file.Name) != ".yaml" {
			continue
		}
		content, err := fs.ReadFile(reader, file.Name)
		if err != nil {
			return nil, err
		}
		for _, tag := range olderImage.FindAll(content, -1) {
			if bytes.Compare(tag, newest) > 0 {
				newest = tag
			}
		}
	}
	if newest == nil {
		return nil, fmt.Errorf("%s has no manifest with an image of its backends", archive)
	}
	return newest, nil
}

// read notes the structs of a package.
func (known structs) read(path, directory string) error {
	files, err := os.ReadDir(directory)
	if err != nil {
		return err
	}
	known[path] = map[string]structType{}
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), ".go") || strings.HasSuffix(file.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(directory, file.Name()), nil, 0)
		if err != nil {
			return err
		}
		imports := importsOf(parsed)
		ast.Inspect(parsed, func(node ast.Node) bool {
			spec, ok := node.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if declared, ok := spec.Type.(*ast.StructType); ok {
				known[path][spec.Name.Name] = declaration(declared, path, imports)
			}
			return false
		})
	}
	return nil
}

func declaration(declared *ast.StructType, path string, imports map[string]string) structType {
	var of structType
	for _, field := range declared.Fields.List {
		for _, name := range field.Names {
			of.fields = append(of.fields, name.Name)
		}
		if len(field.Names) > 0 {
			continue
		}
		if inner, ok := resolve(field.Type, path, imports); ok {
			of.fields = append(of.fields, inner.name)
			of.embedded = append(of.embedded, inner)
		}
	}
	return of
}

// rewrite writes a file anew, if it has something of Go 1.27.
func (known structs) rewrite(path, of string) error {
	positions := token.NewFileSet()
	parsed, err := parser.ParseFile(positions, path, nil, parser.ParseComments)
	if err != nil {
		return err
	}
	writer := writer{known: known, path: of, imports: importsOf(parsed)}
	for _, declared := range parsed.Decls {
		ast.Inspect(declared, func(node ast.Node) bool {
			if literal, ok := node.(*ast.CompositeLit); ok && literal.Type != nil {
				writer.literal(literal, literal.Type)
			}
			return true
		})
	}
	if !writer.changed {
		return nil
	}
	if writer.needsMeta {
		addImport(parsed, "metav1", meta)
	}
	// Comments inside of the literals are dropped with their places: what is kept is what compiles.
	parsed.Comments = slices.DeleteFunc(parsed.Comments, func(group *ast.CommentGroup) bool {
		return group.Pos() > parsed.Package
	})
	var source bytes.Buffer
	if err := format.Node(&source, positions, parsed); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, source.Bytes(), 0o644)
}

type writer struct {
	known              structs
	path               string
	imports            map[string]string
	changed, needsMeta bool
}

// literal writes out the fields of embedded structs in a literal of a type, and in the elements
// that leave theirs out.
func (w *writer) literal(literal *ast.CompositeLit, of ast.Expr) {
	switch of := of.(type) {
	case *ast.ArrayType:
		w.elements(literal, of.Elt)
	case *ast.MapType:
		w.elements(literal, of.Value)
	case *ast.StarExpr:
		w.literal(literal, of.X)
	default:
		if named, ok := resolve(of, w.path, w.imports); ok {
			w.fields(literal, named)
		}
	}
}

func (w *writer) elements(literal *ast.CompositeLit, of ast.Expr) {
	for _, element := range literal.Elts {
		if pair, ok := element.(*ast.KeyValueExpr); ok {
			element = pair.Value
		}
		if inner, ok := element.(*ast.CompositeLit); ok && inner.Type == nil {
			w.literal(inner, of)
		}
	}
}

func (w *writer) fields(literal *ast.CompositeLit, named embedded) {
	declared, ok := w.known[named.path][named.name]
	if !ok {
		return
	}
	inner := map[string]*ast.CompositeLit{}
	var kept []ast.Expr
	for _, element := range literal.Elts {
		pair, ok := element.(*ast.KeyValueExpr)
		if !ok {
			return
		}
		key, ok := pair.Key.(*ast.Ident)
		if !ok || slices.Contains(declared.fields, key.Name) {
			kept = append(kept, element)
			continue
		}
		at := slices.IndexFunc(declared.embedded, func(it embedded) bool { return w.has(it, key.Name) })
		if at < 0 {
			kept = append(kept, element)
			continue
		}
		through := declared.embedded[at]
		if inner[through.name] == nil {
			inner[through.name] = &ast.CompositeLit{Type: w.typeOf(through)}
			kept = append(kept, &ast.KeyValueExpr{Key: ast.NewIdent(through.name), Value: inner[through.name]})
		}
		inner[through.name].Elts = append(inner[through.name].Elts, element)
		w.changed = true
	}
	literal.Elts = kept
	for _, through := range declared.embedded {
		if made := inner[through.name]; made != nil {
			w.fields(made, through)
		}
	}
}

// has says whether a field is a struct's own or that of a struct embedded in it.
func (w *writer) has(of embedded, field string) bool {
	if of.path == meta {
		return slices.Contains(ofMeta[of.name], field)
	}
	declared := w.known[of.path][of.name]
	return slices.Contains(declared.fields, field) ||
		slices.ContainsFunc(declared.embedded, func(it embedded) bool { return w.has(it, field) })
}

func (w *writer) typeOf(of embedded) ast.Expr {
	if of.path == w.path {
		return ast.NewIdent(of.name)
	}
	for name, path := range w.imports {
		if path == of.path {
			return &ast.SelectorExpr{X: ast.NewIdent(name), Sel: ast.NewIdent(of.name)}
		}
	}
	w.needsMeta = w.needsMeta || of.path == meta
	return &ast.SelectorExpr{X: ast.NewIdent("metav1"), Sel: ast.NewIdent(of.name)}
}

// resolve finds the package and name of a type; without a package it is of the one at path.
func resolve(expression ast.Expr, path string, imports map[string]string) (embedded, bool) {
	switch expression := expression.(type) {
	case *ast.Ident:
		return embedded{path, expression.Name}, path != ""
	case *ast.SelectorExpr:
		if alias, ok := expression.X.(*ast.Ident); ok {
			return embedded{imports[alias.Name], expression.Sel.Name}, true
		}
	}
	return embedded{}, false
}

func importsOf(file *ast.File) map[string]string {
	imports := map[string]string{}
	for _, spec := range file.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		name := path[strings.LastIndex(path, "/")+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		imports[name] = path
	}
	return imports
}

func addImport(file *ast.File, name, path string) {
	spec := &ast.ImportSpec{Name: ast.NewIdent(name), Path: &ast.BasicLit{Kind: token.STRING, Value: strconv.Quote(path)}}
	declaration := &ast.GenDecl{Tok: token.IMPORT, Specs: []ast.Spec{spec}}
	file.Decls = append([]ast.Decl{declaration}, file.Decls...)
}
