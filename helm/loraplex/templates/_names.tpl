{{/* First part of the names of all objects; suffixes have up to 9 characters. */}}
{{- define "loraplex.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $both := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $both .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{/* Labels that select a component's pods; they can never change. Takes (list root component). */}}
{{- define "loraplex.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ default $root.Chart.Name $root.Values.nameOverride | trunc 63 }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* All labels of a component's objects. Takes (list root component). */}}
{{- define "loraplex.labels" -}}
{{- $root := index . 0 -}}
{{ include "loraplex.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Reference of an image. Takes (list root image). */}}
{{- define "loraplex.image" -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default (index . 0).Chart.AppVersion $image.tag }}
{{- end -}}
{{- end }}

{{- define "loraplex.serviceAccountName" -}}
{{- $made := default (include "loraplex.fullname" .) .Values.serviceAccount.name -}}
{{- ternary $made (default "default" .Values.serviceAccount.name) .Values.serviceAccount.create -}}
{{- end }}

{{- define "loraplex.streamSecretName" -}}
{{- default (printf "%s-stream" (include "loraplex.fullname" .)) .Values.stream.existingSecret -}}
{{- end }}

{{- define "loraplex.dataClaimName" -}}
{{- default (printf "%s-data" (include "loraplex.fullname" .)) .Values.data.existingClaim -}}
{{- end }}
