{{/* What all objects are called. One release a cluster, whatever it is called: NOTES.txt refuses another. */}}
{{- define "portcullis.name" -}}
{{- if eq .Release.Name "portcullis" }}portcullis{{ else }}{{ printf "%s-portcullis" .Release.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* Cluster-wide names. */}}
{{- define "portcullis.clusterName" -}}
{{- if eq .Release.Name "portcullis" }}portcullis{{ else }}{{ printf "%s-%s" .Release.Namespace (include "portcullis.name" .) }}{{ end }}
{{- end }}

{{/* `app.kubernetes.io/name: portcullis` is how agents count each other. */}}
{{- define "portcullis.selector" -}}
app.kubernetes.io/name: portcullis
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "portcullis.labels" -}}
{{ include "portcullis.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "portcullis.image" -}}
{{- with .Values.image }}
{{- if .digest }}
{{- .repository }}@{{ .digest }}
{{- else }}
{{- .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end }}
{{- end }}
{{- end }}

{{/* With the port, as the agent reads it. */}}
{{- define "portcullis.metricsAddress" -}}
{{ if contains ":" .address }}[{{ .address }}]{{ else }}{{ .address }}{{ end }}:{{ .port }}
{{- end }}
